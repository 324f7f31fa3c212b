"""What a scope has borrowed, as its user sees it: plain methods, protected underneath.

A `HeldEnvironment` or a `HeldHarness` is used like the thing itself. Every method runs as an
operation of the scope: when the caller is cancelled, work that a thread or a server has already
begun goes on, and the thing is returned only after it. ``close`` is not the user's business: the
scope returns what it holds. A finished environment is never stepped again. What the task's own code
raises, a harness or ``messages``, is a fault of its episode (`task_fault`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Environment,
    EnvironmentFactory,
    Harness,
    HarnessFactory,
    Message,
    StepOutcome,
    Task,
    TaskSample,
    ToolCall,
)
from mtrl_cli.rollout.resources import Scope
from mtrl_cli.rollout.task_fault import own_code


async def borrow_environment(scope: Scope, factory: EnvironmentFactory) -> Environment:
    """Borrow one environment until the scope is left."""
    return HeldEnvironment(scope, await scope.borrow(factory.lender()))


async def borrow_harness(
    scope: Scope, factory: HarnessFactory | None, task: Task, metadata: Mapping[str, Any]
) -> Harness:
    """Borrow the task's harness until the scope is left; a task without one gets a plain one."""
    if factory is None:
        return PlainHarness(task)
    return HeldHarness(scope, await scope.borrow(factory.lender(metadata)))


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
        self._done = outcome.done
        return outcome

    async def close(self) -> None:
        """Nothing: the scope returns the environment."""


class HeldHarness:
    """A harness that a scope holds."""

    def __init__(self, scope: Scope, harness: Harness) -> None:
        self._scope = scope
        self._harness = harness

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        with own_code(self._harness, "open"):
            opening = self._harness.open(sample, member, observation)
            return await self._scope.protect(opening, self._harness)

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        with own_code(self._harness, "calls"):
            return await self._scope.protect(self._harness.calls(turn), self._harness)

    async def answer(self, call: ToolCall, text: str) -> str:
        with own_code(self._harness, "answer"):
            return await self._scope.protect(self._harness.answer(call, text), self._harness)

    async def close(self) -> None:
        """Nothing: the scope returns the harness."""


class PlainHarness:
    """The harness of a task that brings none; it holds nothing, so it is not borrowed."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        with own_code(self._task, "messages"):
            return self._task.messages(sample, observation)

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        return turn.calls

    async def answer(self, call: ToolCall, text: str) -> str:
        return text

    async def close(self) -> None:
        pass
