"""A scripted world for the rollout core: a chat of plain numbers, and environments with faults.

The chat has no text: a token is a number, and what a number means is fixed here, so that a test
can write down a whole trajectory by hand.

| ids       | meaning                                                        |
|-----------|----------------------------------------------------------------|
| 1         | end marker (the only stop id)                                  |
| 2, 3      | the prompt's opener and closer; a bridge is ``[3, …answers, 2]`` |
| 10 … 99   | plain text                                                     |
| 100 … 199 | a good tool call ``play(value=id - 100)``                      |
| 200 … 299 | a tool call that cannot be executed                            |

An environment plays a `Script`: what each step answers, and where it fails. `World` counts the
live instances, so that a test can assert that none is left.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Environment,
    Message,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolSpec,
)

END, OPEN, CLOSE = 1, 2, 3


class NumberChat:
    """`rollout.ports.Chat` over plain numbers."""

    stop_ids = (END,)
    vocabulary = 1000

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return [OPEN, *(int(word) for word in messages[-1]["content"].split()), OPEN]

    def read(self, completion: Sequence[int], tools: Sequence[ToolSpec]) -> AssistantTurn:
        calls = tuple(_call(token) for token in completion if token >= 100)
        return AssistantTurn(" ".join(map(str, completion)), calls)

    def bridge(self, completion: Sequence[int], results: Sequence[Message]) -> list[int]:
        inserted = [] if completion and completion[-1] == END else [END]
        answers = [int(word) for result in results for word in str(result["content"]).split()]
        return [*inserted, CLOSE, *answers, OPEN]


def _call(token: int) -> ToolCall:
    if token >= 200:
        return ToolCall("play", {}, error="99")
    return ToolCall("play", {"value": token - 100})


@dataclass(frozen=True)
class Script:
    """How one environment behaves. ``steps`` are consumed one a tool call."""

    opening: str = "10 11"
    steps: Sequence[StepOutcome | Exception] = (StepOutcome("20", 1.0, done=True),)
    on_open: Exception | None = None
    on_reset: Exception | None = None
    on_close: Exception | None = None
    step_seconds: float = 0.0


@dataclass
class World:
    """`rollout.ports.EnvironmentFactory` whose n-th instance plays ``scripts(n)``."""

    scripts: Callable[[int], Script] = field(default=lambda index: Script())
    opened: int = 0
    live: int = 0
    steps_after_end: int = 0

    def lender(self) -> Lender[Environment]:
        return Lender("env", self._open, lambda environment: environment.close())

    async def _open(self, key: str) -> Environment:
        script = self.scripts(self.opened)
        self.opened += 1
        if script.on_open is not None:
            raise script.on_open
        self.live += 1
        return _Scripted(self, script)

    async def close(self) -> None:
        pass


class _Scripted:
    def __init__(self, world: World, script: Script) -> None:
        self._world = world
        self._script = script
        self._next = 0
        self._ended = False
        self._closed = False

    async def reset(self, sample: TaskSample, member: int) -> str:
        if self._script.on_reset is not None:
            raise self._script.on_reset
        return self._script.opening

    async def step(self, call: ToolCall) -> StepOutcome:
        if self._ended or self._closed:
            self._world.steps_after_end += 1
        await asyncio.sleep(self._script.step_seconds)
        outcome = self._script.steps[self._next]
        self._next += 1
        if isinstance(outcome, Exception):
            raise outcome
        self._ended = outcome.done
        return outcome

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._world.live -= 1
        if self._script.on_close is not None:
            raise self._script.on_close


@dataclass(frozen=True)
class NumberTask:
    """`rollout.ports.Task` for the number chat."""

    name: str = "numbers"
    unfinished_reward: float = -1.0
    tools: Sequence[ToolSpec] = ()
    references: Mapping[str, float] = field(default_factory=dict)

    def sample(self, seed: int) -> TaskSample:
        return TaskSample(f"numbers-{seed}", seed)

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": observation}]
