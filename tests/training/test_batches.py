"""What is told of whole batches: that many of it failed, and that nothing could be learned."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mtrl_cli.config.schema import ServerConfig
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.trajectory import CallRecord, Stop, Turn
from mtrl_cli.training.telling.batches import Batches, untrained
from tests.training.helpers import group_of, member

TOOLS = ({"name": "play"},)
CALL = CallRecord("play", "", 0.0, False, False, {})


def batches() -> tuple[Batches, list[str]]:
    told: list[str] = []
    return Batches(told.append, ServerConfig(), "; more: see"), told


def silent(failures: int) -> Group:
    """24 members that made no call, and attempts that failed in the turn of their call."""
    group = group_of(*[0.0] * 24)
    for one in group.members:
        one.turns.append(Turn("so", 2, ()))
    facts = group.admission
    lost = [member(facts, 0, None, stop=Stop.ENV_FAILURE) for _ in range(failures)]
    for one in lost:
        one.failure = "the reward is nan"
        one.turns.append(Turn("", 5, (CALL,)))
    return replace(group, failures=tuple(lost))


def test_of_calls_nothing_is_said_while_most_episodes_fail() -> None:
    batch, told = batches()
    batch.stepped(4, [silent(24)], TOOLS, {})
    first = "24 of 48 episodes of step 4 failed, all alike: the reward is nan"
    assert told == [first]
    batch.stepped(5, [silent(30)], TOOLS, {})
    assert told == [first]
    batch.stepped(6, [silent(2)], TOOLS, {})  # 24 of 26 turns are below the share
    assert told == [first]
    batch.stepped(7, [silent(1)], TOOLS, {})
    assert len(told) == 2
    assert told[1].startswith("96% of 25 turns end in no tool call")
    assert told[1].endswith("; more: see")


@pytest.mark.parametrize(
    ("label", "name"),
    [("before", "before training"), ("after", "after training"), ("step 20", "of step 20")],
)
def test_an_evaluation_is_named(label: str, name: str) -> None:
    batch, told = batches()
    batch.evaluated([silent(24)], TOOLS, label)
    assert told == [
        f"24 of 48 episodes of the evaluation {name} failed, all alike: the reward is nan"
    ]


def test_many_failures_are_told_once_of_steps_and_once_of_evaluations() -> None:
    batch, told = batches()
    batch.evaluated([silent(2)], TOOLS, "before")
    batch.stepped(4, [silent(3)], TOOLS, {})
    batch.stepped(5, [silent(9)], TOOLS, {})
    batch.evaluated([silent(8)], TOOLS, "step 5")
    batch.stepped(6, [silent(24)], TOOLS, {})
    batch.stepped(7, [silent(4)], TOOLS, {})
    batch.stepped(8, [silent(30)], TOOLS, {})
    batch.evaluated([silent(7)], TOOLS, "after")
    lost = [line.partition(" failed")[0] for line in told if "failed" in line]
    assert lost == [
        "3 of 27 episodes of step 4",
        "8 of 32 episodes of the evaluation of step 5",
        "24 of 48 episodes of step 6",  # most of them: worse than what was told
    ]


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ({"trained": 1, "constant_reward": 59}, None),
        ({"constant_reward": 60}, "had no group whose rewards differ: 60 of equal rewards; that"),
        (
            {"constant_reward": 40, "env_failure": 20},
            "had no group whose rewards differ: 40 of equal rewards, 20 env_failure; that",
        ),
        ({"model_truncated": 3}, "had no group to train: 3 model_truncated"),
    ],
)
def test_steps_without_an_advantage(outcomes: Mapping[str, int], says: str | None) -> None:
    found = untrained(outcomes)
    assert (
        found is None
        if says is None
        else found is not None and found.startswith(f"the first 3 steps {says}")
    )


def test_it_is_told_after_the_third_step_of_a_run() -> None:
    batch, told = batches()
    for step in range(1, 6):
        batch.stepped(step, [group_of(0.0, 0.0)], (), {step: "constant_reward"})
        assert len(told) == (step >= 3)
    assert told[0].startswith("the first 3 steps had no group whose rewards differ: 3 of equal")
    later, nothing = batches()
    for step in range(2, 9):  # a resume
        later.stepped(step, [group_of(0.0, 0.0)], (), {step: "constant_reward"})
    assert nothing == []
