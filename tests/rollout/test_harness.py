"""Harnesses: one for each trajectory, named when it cannot begin; what an admission tells them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mtrl_cli.rollout.group import FailureRule
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Harness,
    InfrastructureFailure,
    Message,
    TaskSample,
    ToolCall,
)
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.testing.world import World
from tests.rollout.helpers import admission, admit, rollout_of, virtual


@dataclass
class Memory:
    """A harness with a memory: it answers each call with how many it has answered."""

    key: str
    metadata: Mapping[str, Any]
    answered: int = 0
    users: set[str] = field(default_factory=set)

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        self.users.add(f"g{sample.seed}/m{member}")
        return [{"role": "user", "content": f"{10 + sample.seed}"}]

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        return turn.calls

    async def answer(self, call: ToolCall, text: str) -> str:
        self.answered += 1
        return f"{40 + self.answered}"

    async def close(self) -> None:
        self.key += " closed"


@dataclass
class Memories:
    """`HarnessFactory`; ``on_make`` fails the first makes."""

    on_make: list[Exception] = field(default_factory=list)
    made: list[Memory] = field(default_factory=list)

    def lender(self, metadata: Mapping[str, Any]) -> Lender[Harness]:
        async def make(key: str) -> Harness:
            if self.on_make:
                raise self.on_make.pop(0)
            self.made.append(Memory(key, metadata))
            return self.made[-1]

        return Lender("harness", make, lambda harness: harness.close())


class TestHarness:
    @virtual
    async def test_no_two_trajectories_ever_share_one(self) -> None:
        memories = Memories()
        async with rollout_of(harnesses=memories) as rollout:
            for group in range(3):
                rollout.admit(admission(size=4, group=group))
            groups = await rollout.collect()
        assert len(memories.made) == 12
        assert sorted(user for memory in memories.made for user in memory.users) == [
            f"g{group}/m{member}" for group in range(3) for member in range(4)
        ]
        assert {memory.answered for memory in memories.made} == {1}
        answers = {t.turns[0].calls[0].answer for group in groups for t in group.members}
        assert answers == {"41"}  # everyone's first
        assert all(memory.key.endswith(" closed") for memory in memories.made)

    @virtual
    async def test_one_that_cannot_begin_is_named_and_the_environment_goes_back(self) -> None:
        world = World()
        memories = Memories([InfrastructureFailure("the agent's image is missing")])
        rule = FailureRule("drop")
        async with rollout_of(harnesses=memories, envs=world, failure_rule=rule) as rollout:
            admit(rollout, 0)
            [group] = await rollout.collect()
        [failure] = group.failures
        assert (failure.stop, failure.reward) == (Stop.ENV_FAILURE, None)
        assert failure.failure == "the agent's image is missing"
        assert (world.opened, world.live, rollout.resources.live) == (1, 0, ())

    @virtual
    async def test_a_bug_in_its_making_is_told_and_the_environment_goes_back(self) -> None:
        world = World()
        memories = Memories([ZeroDivisionError("a bug in the harness")])
        none = FailureRule("refill", max_refills=0)
        async with rollout_of(harnesses=memories, envs=world, failure_rule=none) as rollout:
            admit(rollout, 0)
            [group] = await rollout.collect()
        told = "Memories.lender raised ZeroDivisionError: a bug in the harness"
        assert str(group.failures[0].failure).startswith(told)
        assert (world.opened, world.live) == (1, 0)

    @virtual
    async def test_a_refill_gets_a_fresh_one(self) -> None:
        memories = Memories([InfrastructureFailure("gone")])
        async with rollout_of(harnesses=memories) as rollout:
            admit(rollout, 0)
            [group] = await rollout.collect()
        assert (group.failed, len(group.failures), len(memories.made)) == (None, 1, 1)
        assert "/r1/" in memories.made[0].key


class TestAdmissionMetadata:
    @virtual
    async def test_it_reaches_the_harness_and_the_trajectory_as_it_was_given(self) -> None:
        given = {"agent": {"tools": ["a", {"name": "b"}]}, "labels": {"x"}, "depth": 3}
        made = replace(admission(size=2), harness=given, template={"thinking": [True]})
        given["agent"]["tools"].append("added later")  # type: ignore[index]
        given["depth"] = 4
        memories = Memories()
        async with rollout_of(harnesses=memories) as rollout:
            rollout.admit(made)
            [group] = await rollout.collect()
        expected = {"agent": {"tools": ("a", {"name": "b"})}, "labels": {"x"}, "depth": 3}
        for member in group.members:
            assert member.admission.group is made
            assert member.admission.group.harness == expected
        assert all(memory.metadata == expected for memory in memories.made)

    def test_it_cannot_be_changed_at_any_depth(self) -> None:
        made = replace(admission(), harness={"agent": {"tools": ["a", {"name": "b"}]}, "s": {1}})
        metadata: Any = made.harness
        with pytest.raises(TypeError):
            metadata["agent"] = 1
        with pytest.raises(TypeError):
            metadata["agent"]["tools"] = 1
        with pytest.raises(TypeError):
            metadata["agent"]["tools"][0] = 1
        with pytest.raises(TypeError):
            metadata["agent"]["tools"][1]["name"] = 1
        with pytest.raises(AttributeError):
            metadata["s"].add(2)
        with pytest.raises(AttributeError):
            made.harness = {}  # type: ignore[misc]
