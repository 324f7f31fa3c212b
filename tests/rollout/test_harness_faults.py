"""A harness that fails in any of its methods, in any way: a fault of its episode, and no more."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from mtrl_cli.rollout.group import FailureRule, Group
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import AssistantTurn, ContextOverflow, ToolCall, ToolError
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.testing.world import END
from tests.rollout.helpers import ScriptedPolicy, admission, rollout_of, said


class Unusual(BaseException):
    """What no ``except Exception`` sees."""


class Plain:
    """A harness that works; a test breaks one method of it."""

    async def open(self, sample: Any, member: int, observation: str) -> Any:
        return [{"role": "user", "content": "10"}]

    async def calls(self, turn: AssistantTurn) -> Any:
        return turn.calls

    async def answer(self, call: ToolCall, text: str) -> Any:
        return "11"

    async def close(self) -> None:
        pass


class Lent:
    """`HarnessFactory` of the one harness that ``make`` makes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def lender(self, metadata: Mapping[str, Any]) -> Lender[Any]:
        async def make(key: str) -> Any:
            return self.make()

        return Lender("harness", make, lambda harness: harness.close())


def broken(method: str, work: Callable[..., Awaitable[Any]]) -> type[Plain]:
    return type("Broken", (Plain,), {method: work})


def raising(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def work(*_: Any) -> None:
        raise error

    return work


def returning(value: Any) -> Callable[..., Awaitable[Any]]:
    async def work(*_: Any) -> Any:
        return value

    return work


async def played(make: Callable[[], Any]) -> tuple[Group, RolloutResources]:
    resources = RolloutResources(patience=0.1)
    rollout = rollout_of(
        ScriptedPolicy(said(101, END), said(5, END)),
        harnesses=Lent(make),
        resources=resources,
        failure_rule=FailureRule("refill", max_refills=0),
    )
    (group,) = await rollout.run([admission()])
    return group, resources


RAISED = [
    SystemExit(3), Unusual("u"), asyncio.CancelledError(), StopAsyncIteration(), ToolError("t"),
    ContextOverflow("c"), BaseExceptionGroup("g", [Unusual()]),
]  # fmt: skip


@pytest.mark.parametrize("method", ["open", "calls", "answer"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_it_raises_is_a_fault_of_its_episode(
    error: BaseException, method: str
) -> None:
    group, resources = await played(broken(method, raising(error)))
    (failed,) = group.failures
    assert (failed.stop, failed.reward) == (Stop.ENV_FAILURE, None)
    said_so = f"Broken.{method} raised {type(error).__name__}: "
    assert str(failed.failure).startswith(said_so)
    assert resources.live == ()


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_one_that_cannot_be_returned_is_named(error: BaseException) -> None:
    group, resources = await played(broken("close", raising(error)))
    assert group.failed is None
    (left,) = resources.quarantined
    assert str(left.reason).startswith(f"Broken.close raised {type(error).__name__}: ")


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), Unusual()])
async def test_one_that_cannot_be_made_is_a_fault_of_its_episode(error: BaseException) -> None:
    class Unmakeable(Plain):
        def __init__(self) -> None:
            raise error

    group, resources = await played(Unmakeable)
    says = f"Lent.lender raised {type(error).__name__}: "
    assert str(group.failures[0].failure).startswith(says)
    assert resources.live == ()


@pytest.mark.parametrize(
    ("method", "value", "says"),
    [
        ("open", None, "None where a list of messages is needed"),
        ("open", [], "[] where a list of messages is needed"),
        ("open", "hello", "'hello' where a list of messages is needed"),
        ("open", [{"content": "1"}], "{'content': '1'} as message 0 where a mapping with a \"role\""
         " is needed"),
        ("open", [{"role": "user", "content": "1", "seen": {1}}],
         "{1} in its messages where text or a number is needed"),
        ("calls", 3, "3 where a list of ToolCall is needed"),
        ("calls", ["play"], "'play' as a call where a ToolCall is needed"),
        ("calls", [ToolCall("play", None)],  # type: ignore[arg-type]
         "ToolCall(name='play', arguments=None, error=None) as a call where a ToolCall with a name"
         " and a mapping of arguments is needed"),
        ("answer", None, "None where a string is needed"),
    ],
)  # fmt: skip
async def test_what_it_returns_is_checked(method: str, value: Any, says: str) -> None:
    group, _ = await played(broken(method, returning(value)))
    (failed,) = group.failures
    assert failed.stop is Stop.ENV_FAILURE
    assert failed.failure is not None
    told, place = failed.failure.rsplit(" (", 1)
    assert told == f"Broken.{method} returned {says}"
    assert re.fullmatch(r".*test_harness_faults\.py:\d+\)", place)


async def test_no_calls_at_all_are_an_answer() -> None:
    group, _ = await played(broken("calls", returning(None)))
    assert group.members[0].stop is Stop.ANSWER


async def test_its_messages_are_recorded_as_they_were() -> None:
    """A memory goes on being written; what the model read at the start does not change."""

    class Remembering(Plain):
        def __init__(self) -> None:
            self.memory = [{"role": "user", "content": "10", "more": {"seen": [1]}}]

        async def open(self, sample: Any, member: int, observation: str) -> Any:
            return self.memory

        async def answer(self, call: ToolCall, text: str) -> str:
            self.memory[0]["more"]["seen"].append(2)  # type: ignore[index]
            self.memory.append({"role": "tool", "content": text})
            return "11"

    group, _ = await played(Remembering)
    opening = [{"role": "user", "content": "10", "more": {"seen": [1]}}]
    assert group.members[0].opening == opening
