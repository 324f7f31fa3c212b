"""mtrl's rollout core on the workload that `orchestration` compares it on."""

from collections.abc import Sequence
from typing import Any

from benchmarks.workload import GROUP, Workload
from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Environment,
    Message,
    Sample,
    SampleRequest,
    SamplingParams,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolSpec,
)
from mtrl_cli.testing.world import NumberTask

_CALL = AssistantTurn("", (ToolCall("play", {}),))
_LONG = 2**30


class _Policy:
    def __init__(self, work: Workload) -> None:
        self._work, self._tokens, self._logprobs = work, work.sampled, work.logprobs

    async def sample(self, request: SampleRequest) -> Sample:
        await self._work.think()
        return Sample(list(self._tokens), list(self._logprobs), "stop", request.policy)


class _Chat:
    stop_ids = (1,)
    vocabulary = 200_000

    def __init__(self, work: Workload) -> None:
        self._prompt, self._answer = work.prompt, work.answer

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self._prompt

    def read(self, completion: Sequence[int], tools: Sequence[ToolSpec]) -> AssistantTurn:
        return _CALL

    def bridge(self, completion: Sequence[int], results: Sequence[Message]) -> list[int]:
        return self._answer


class _Environment:
    def __init__(self, turns: int) -> None:
        self._left = turns

    async def reset(self, sample: TaskSample, member: int) -> str:
        return ""

    async def step(self, call: ToolCall) -> StepOutcome:
        self._left -= 1
        return StepOutcome("", float(not self._left), done=not self._left)

    async def close(self) -> None:
        pass


class _Environments:
    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._lender: Lender[Environment] = Lender("env", self._open, lambda one: one.close())

    def lender(self) -> Lender[Environment]:
        return self._lender

    async def _open(self, key: str) -> Environment:
        return _Environment(self._turns)

    async def close(self) -> None:
        pass


async def play(work: Workload) -> list[Group]:
    """Play all groups of ``work`` at once."""
    task = NumberTask()
    budget = Budget(_LONG, _LONG, _LONG, work.turns + 1, deadline=3600.0)
    admissions = [
        GroupAdmission(
            run="r", stream="train", run_seed=0, group=number, size=GROUP, task=task.sample(number),
            policy="policy://p", policy_step=0, sampling=SamplingParams(), budget=budget,
        )
        for number in range(work.episodes // GROUP)
    ]  # fmt: skip
    rollout = ClientMultiTurnRollout(
        policy=_Policy(work),
        chat=_Chat(work),
        task=task,
        envs=_Environments(work.turns),
        concurrency=work.episodes,
    )
    async with rollout:
        groups = await rollout.run(admissions)
    _check(groups, work)
    return groups


def _check(groups: Sequence[Group], work: Workload) -> None:
    """Everything was played, and is kept."""
    text = work.text
    tokens = text.prompt + work.turns * text.sampled + (work.turns - 1) * text.answer
    members: list[Any] = [member for group in groups for member in group.members]
    assert len(members) == work.episodes
    assert all(len(m.turns) == work.turns and m.reward == 1.0 for m in members)
    assert all(len(member.tokens) == tokens for member in members)
