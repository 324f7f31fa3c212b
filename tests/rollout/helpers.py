"""Shorthand for the rollout tests: one admission, one scripted policy, one call to play."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.group import FailureRule, Group
from mtrl_cli.rollout.ports import Message, Sample, SampleRequest, SamplingParams, TaskSample
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.testing.clock import run_virtual
from mtrl_cli.testing.world import END, NumberChat, NumberTask, World

BUDGET = Budget(turn_tokens=8, trajectory_tokens=100, context=200, max_turns=4, deadline=10)


def admission(
    size: int = 1, budget: Budget = BUDGET, group: int = 0, policy_step: int = 0
) -> GroupAdmission:
    return GroupAdmission(
        run="test",
        stream="train",
        run_seed=7,
        group=group,
        size=size,
        task=NumberTask().sample(group),
        policy=f"policy-{policy_step}",
        policy_step=policy_step,
        sampling=SamplingParams(),
        budget=budget,
    )


class ScriptedPolicy:
    """Answers the n-th request of a trajectory with the n-th completion; records requests."""

    def __init__(self, *turns: Sample | Exception | Callable[[SampleRequest], Sample]) -> None:
        self.turns = turns
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Sample:
        turn = self.turns[min(len(self.requests), len(self.turns) - 1)]
        self.requests.append(request._replace(tokens=tuple(request.tokens)))
        if isinstance(turn, Exception):
            raise turn
        return turn if isinstance(turn, Sample) else turn(request)


def said(*tokens: int, logprobs: Sequence[float] | None = None, stop: str = "stop") -> Sample:
    """A completion; token k has the logprob -0.01 · k unless told otherwise."""
    values = [-0.01 * token for token in tokens] if logprobs is None else logprobs
    return Sample(tokens, values, "stop" if stop == "stop" else "length")


async def play_groups(
    policy: object, *admissions: GroupAdmission, world: World | None = None, **options: object
) -> list[Group]:
    rollout = ClientMultiTurnRollout(
        policy=policy,  # type: ignore[arg-type]
        chat=NumberChat(),
        task=NumberTask(),
        envs=world or World(),
        resources=RolloutResources(patience=0.1),
        failure_rule=FailureRule(**options),  # type: ignore[arg-type]
    )
    return await rollout.run(admissions)


@dataclass
class Delays:
    """A policy that answers a group after its number of seconds, and raises what it is told."""

    errors: Mapping[int, BaseException] = field(default_factory=dict)

    async def sample(self, request: SampleRequest) -> Sample:
        group = request.tokens[1] - 10
        await asyncio.sleep(group)
        if group in self.errors:
            raise self.errors[group]
        return said(101, END)


@dataclass(frozen=True)
class GroupTask(NumberTask):
    """Its prompt tells the policy which group is asking."""

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        return [{"role": "user", "content": str(10 + sample.seed)}]


def rollout_of(policy: Any = None, **options: Any) -> ClientMultiTurnRollout:
    given = {
        "policy": policy or Delays(),
        "chat": NumberChat(),
        "task": GroupTask(),
        "envs": World(),
        "resources": RolloutResources(patience=1),
        **options,
    }
    return ClientMultiTurnRollout(**given)


def admit(rollout: ClientMultiTurnRollout, *groups: int) -> None:
    for group in groups:
        rollout.admit(admission(group=group))


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on a virtual clock: its delays take no time, and nothing else can delay."""

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        run_virtual(test(*arguments, **options))

    return run
