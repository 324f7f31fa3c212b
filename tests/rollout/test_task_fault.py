"""What a task's own code raises is a fault of the episode: the others go on."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.events import MemberFinished
from mtrl_cli.rollout.group import FailureRule
from mtrl_cli.rollout.ports import Message, TaskSample
from mtrl_cli.rollout.task_fault import may_be_the_users
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.testing.world import NumberTask
from tests.rollout.helpers import ScriptedPolicy, admission, rollout_of, said

HERE = str(Path(__file__))


class Odd(NumberTask):
    """Its prompt fails for the observations that the world gives to some."""

    error: BaseException | None = None
    left = 1

    def messages(self, sample: TaskSample, observation: str) -> Any:
        if self.error is not None and self.left:
            self.left -= 1
            raise self.error
        return super().messages(sample, observation)


def line_of(text: str) -> int:
    return 1 + next(n for n, line in enumerate(Path(HERE).read_text().splitlines()) if text in line)


class Hostile(BaseException):
    """Neither an Exception nor with a text."""

    def __str__(self) -> str:
        raise SystemExit(3)


class HostileRefusalError(UsageError, Hostile):
    __str__ = Hostile.__str__


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"), ZeroDivisionError(), SystemExit(3), Hostile(), HostileRefusalError(),
        GeneratorExit(), asyncio.CancelledError(),
    ],
)  # fmt: skip
async def test_a_prompt_that_fails_is_played_again(error: BaseException) -> None:
    task, seen = Odd(), list[MemberFinished]()
    task.error = error
    rollout = rollout_of(
        ScriptedPolicy(said(5)),
        task=task,
        failure_rule=FailureRule("refill", max_refills=1),
        observer=lambda event: seen.append(event) if isinstance(event, MemberFinished) else None,
    )
    (group,) = await rollout.run([admission(size=2)])
    assert group.failed is None
    assert len(group.members) == 2
    (failed,) = group.failures
    assert (failed.stop, failed.reward) == (Stop.ENV_FAILURE, None)
    place = f"({HERE}:{line_of('raise self.' + 'error')})"
    assert failed.failure is not None
    assert failed.failure.startswith(f"Odd.messages raised {type(error).__name__}: ")
    assert failed.failure.endswith(place)
    traces = [event.trace for event in seen if event.trace]
    assert len(traces) == 1
    assert "Traceback (most recent call last)" in traces[0]


async def test_what_is_no_prompt_is_the_tasks_fault() -> None:
    class Nothing(NumberTask):
        def messages(self, sample: TaskSample, observation: str) -> list[Message]:
            return None  # type: ignore[return-value]

    rule = FailureRule("refill", max_refills=0)
    rollout = rollout_of(ScriptedPolicy(said(5)), task=Nothing(), failure_rule=rule)
    (group,) = await rollout.run([admission(size=1)])
    assert group.failed == "env_failure"
    told = "Nothing.messages returned None where a list of messages is needed"
    line = Nothing.messages.__code__.co_firstlineno
    assert group.failures[0].failure == f"{told} ({__file__}:{line})"


async def test_what_is_meant_to_end_the_run_ends_it() -> None:
    task = Odd()
    task.error = UsageError("task.params.words: there is no such file")
    with pytest.raises(BaseExceptionGroup) as ended:
        await rollout_of(ScriptedPolicy(said(5)), task=task).run([admission(size=1)])
    assert ended.group_contains(UsageError)


async def test_a_keyboard_interrupt_is_the_users_only_where_ctrl_c_raises_it() -> None:
    class Hand(NumberTask):
        def messages(self, sample: TaskSample, observation: str) -> list[Message]:
            raise KeyboardInterrupt

    assert may_be_the_users()  # under pytest, as in a script
    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # as in a run
    try:
        seen = list[MemberFinished]()
        rule = FailureRule("refill", max_refills=0)
        rollout = rollout_of(
            ScriptedPolicy(said(5)),
            task=Hand(),
            failure_rule=rule,
            observer=lambda e: seen.append(e) if isinstance(e, MemberFinished) else None,
        )
        await rollout.run([admission(size=1)])
    finally:
        signal.signal(signal.SIGINT, before)
    (member,) = seen
    assert member.interrupts
    assert member.failure is not None
    assert member.failure.startswith("Hand.messages raised KeyboardInterrupt: (no message) (")
