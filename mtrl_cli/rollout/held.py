"""What a scope has borrowed, as its user sees it: plain methods, protected underneath.

A `HeldEnvironment` or a `HeldHarness` is used like the thing itself. Every method runs as an
operation of the scope: when the caller is cancelled, work that a thread or a server has already
begun goes on, and the thing is returned only after it. ``close`` is not the user's business: the
scope returns what it holds. A finished environment is never stepped again. What the task's own code
raises, a harness or ``messages``, is a fault of its episode (`task_fault`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mtrl_cli.foreign import shown
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Environment,
    EnvironmentFactory,
    EnvironmentFault,
    Harness,
    HarnessFactory,
    Message,
    StepOutcome,
    Task,
    TaskSample,
    ToolCall,
)
from mtrl_cli.rollout.resources import Scope
from mtrl_cli.rollout.settle import never_waits
from mtrl_cli.rollout.task_fault import conversation, own_code, tool_calls
from mtrl_cli.rollout.task_fault import text as told

T = TypeVar("T")


async def borrow_environment(scope: Scope, factory: EnvironmentFactory) -> Environment:
    """Borrow one environment until the scope is left."""
    return HeldEnvironment(scope, await scope.borrow(factory.lender()))


async def borrow_harness(
    scope: Scope, factory: HarnessFactory | None, task: Task, metadata: Mapping[str, Any]
) -> "HeldHarness | PlainHarness":
    """Borrow the task's harness until the scope is left; a task without one gets a plain one."""
    if factory is None:
        return PlainHarness(task)
    with own_code(factory, "lender"):
        lender = _guarded(factory, factory.lender(metadata))
    return HeldHarness(scope, await scope.borrow(lender))


def _guarded(factory: HarnessFactory, lender: Lender[Harness]) -> Lender[Harness]:
    """What the task's own code raises on the two ways is a fault, too."""

    async def make(key: str) -> Harness:
        with own_code(factory, "lender"):
            return await lender.make(key)

    async def give_back(harness: Harness) -> None:
        with own_code(harness, "close"):
            await lender.give_back(harness)

    return replace(lender, make=make, give_back=give_back)


class HeldEnvironment:
    """An environment that a scope holds."""

    def __init__(self, scope: Scope, environment: Environment) -> None:
        self._scope = scope
        self._environment = environment
        self._done = False

    async def reset(self, sample: TaskSample, member: int) -> str:
        return await self._scope.protect(self._environment.reset(sample, member), self._environment)

    async def step(self, call: ToolCall) -> StepOutcome:
        if self._done:
            raise RuntimeError("the episode is done: nothing steps its environment after that")
        outcome = await self._scope.protect(self._environment.step(call), self._environment)
        _check_outcome(self._environment, outcome)
        self._done = outcome.done
        return outcome

    async def close(self) -> None:
        """Nothing: the scope returns the environment."""


LARGEST_REWARD = 1e12
"""Size of a reward; that of a larger one is a mistake, and its square soon no number."""


def _check_outcome(environment: Environment, outcome: Any) -> None:
    """Raises: EnvironmentFault: it is no `StepOutcome`, or one of its parts is not what it is."""
    if (
        isinstance(outcome, StepOutcome)
        and isinstance(outcome.text, str)
        and isinstance(outcome.reward, float | int)
        and -LARGEST_REWARD <= outcome.reward <= LARGEST_REWARD
        and isinstance(outcome.done, bool)
    ):
        return
    raise EnvironmentFault(
        f"{type(environment).__name__}.step returned {shown(outcome)}: it returns a StepOutcome"
        f" with a text, a reward within ±{LARGEST_REWARD:g} and whether the episode is done"
    )


class HeldHarness:
    """A harness that a scope holds."""

    def __init__(self, scope: Scope, harness: Harness) -> None:
        self._scope = scope
        self._harness = harness
        self.opener: tuple[object, str] = (harness, "open")
        """Whose method makes the opening, and which."""

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        return await self._run(
            "open", conversation, lambda: self._harness.open(sample, member, observation)
        )

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        return await self._run("calls", tool_calls, lambda: self._harness.calls(turn))

    async def answer(self, call: ToolCall, text: str) -> str:
        return await self._run("answer", told, lambda: self._harness.answer(call, text))

    async def _run(
        self, operation: str, checked: Callable[[Any], T], begin: Callable[[], Awaitable[Any]]
    ) -> T:
        with own_code(self._harness, operation):
            work = begin()
            if never_waits(work):
                return checked(await self._scope.protect(work, self._harness))

        async def run() -> T:
            with own_code(self._harness, operation):
                return checked(await work)

        return await self._scope.protect(run(), self._harness)

    async def close(self) -> None:
        """Nothing: the scope returns the harness."""


class PlainHarness:
    """The harness of a task that brings none; it holds nothing, so it is not borrowed."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.opener: tuple[object, str] = (task, "messages")

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        with own_code(self._task, "messages"):
            return conversation(self._task.messages(sample, observation))

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        return turn.calls

    async def answer(self, call: ToolCall, text: str) -> str:
        return text

    async def close(self) -> None:
        pass
