"""A run's use of an emulated account, in this process: what the tests of the backend share."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtrl_cli.envs.e2b.backend import E2BFactory, Limits
from mtrl_cli.envs.interface import Deadlines, TaskEnvironment, Watch
from mtrl_cli.rollout.ports import TaskSample, ToolCall
from mtrl_cli.rollout.resources import RolloutResources, Scope
from mtrl_cli.testing.e2b_emulator import E2BEmulator

GAME = Path(__file__).with_name("game.py")
SAMPLE = TaskSample("s", seed=7)
SETTLES = 1.0
"""Seconds after which a lost creation is known to have made nothing."""


class Adapter:
    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed, "member": member}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        return {"do": call.name, **call.arguments}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])


def go(do: str = "go", **arguments: Any) -> ToolCall:
    return ToolCall(do, arguments)


class Journal:
    """Keeps what is recorded of borrows."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []

    def borrow(self, key: str, state: str, **facts: Any) -> None:
        self.lines.append((key, state, facts))

    def states(self, key: str) -> list[str]:
        """Those that it went through; a line that only adds facts is none."""
        told = [state for name, state, _ in self.lines if name == key]
        return [state for state, _ in itertools.groupby(told)]

    def open(self) -> list[str]:
        last = {key: state for key, state, _ in self.lines}
        return [key for key, state in last.items() if state != "released"]


@dataclass
class Rig:
    emulator: E2BEmulator
    factory: E2BFactory
    resources: RolloutResources
    journal: Journal
    watch: Watch
    told: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def environment(self, name: str = "t") -> AsyncIterator[TaskEnvironment]:
        async with self.resources.scope(name) as scope:
            yield await self.borrow(scope)

    async def borrow(self, scope: Scope) -> TaskEnvironment:
        environment = await scope.borrow(self.factory.lender())
        assert isinstance(environment, TaskEnvironment)
        return environment


@asynccontextmanager
async def rig(
    emulator: E2BEmulator,
    *,
    game: str = "Game",
    run: str = "run-1",
    at_once: int = 1000,
    per_second: float = 1000.0,
    longest: float = 3600.0,
    settles: float = SETTLES,
    outage: float = 60.0,
    life: float = 100.0,
    dead: Callable[[str], bool] = lambda run: False,
    entrypoint: str | None = None,
    adapter: Any = None,
    deadlines: Deadlines = Deadlines(5.0, 5.0, 2.0, 4.0),  # noqa: B008 - frozen
    **options: Any,
) -> AsyncIterator[Rig]:
    """The account is borrowed as a run does it, and returned at the end."""
    journal, told = Journal(), list[str]()
    watch = Watch(told.append)
    resources = RolloutResources(journal, patience=5.0)
    factory = E2BFactory(
        entrypoint or f"{GAME}:{game}",
        adapter or Adapter(),
        api_key="emulated",
        template="base",
        limits=Limits(at_once, per_second, longest, settles, outage),
        life=life,
        deadlines=deadlines,
        watch=watch,
        **{"files": (), "params": {}, **options},
    )
    async with resources.scope("run") as scope:
        await scope.borrow(factory.account(run, resources, dead))
        yield Rig(emulator, factory, resources, journal, watch, told)
    await resources.close()
