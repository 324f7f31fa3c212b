"""OpenEnv environments of a `CountedWorld`: one that works in a thread, one on the event loop."""

import asyncio
import itertools
import time
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from mtrl_cli.testing.counted_world import CountedWorld

_LOOK_EVERY = 0.01
_numbers = itertools.count(1)


class Play(Action):  # type: ignore[misc] # openenv is not typed
    value: int


class Seen(Observation):  # type: ignore[misc]
    text: str


class CountedEnvironment(Environment):  # type: ignore[misc]
    """``turns`` plays long; see `counted_world` for what is counted and what is scripted."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    action_class = Play

    def __init__(self) -> None:
        super().__init__()
        self._world = CountedWorld.of_environ()
        self._number = next(_numbers)
        self._left = self._member = 0
        self._world.enter(self._number)
        self._world.record("init", self._number)
        try:
            self._perform("init")
        except BaseException:
            self._world.leave(self._number)
            raise

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Seen:
        self._world.record("reset", self._number)
        self._perform("reset")
        return self._begun(given)

    def step(self, action: Play, timeout_s: float | None = None, **_: Any) -> Seen:
        self._world.record("step", self._number)
        self._perform("step")
        return self._played(action)

    def close(self) -> None:
        self._world.record("close", self._number)
        self._perform("close")
        self._world.leave(self._number)

    @property
    def state(self) -> State:
        return State()

    def _begun(self, given: dict[str, Any]) -> Seen:
        self._member, self._left = int(given["member"]), int(given["turns"])
        return Seen(text="Play.")

    def _played(self, action: Play) -> Seen:
        self._left -= 1
        done = self._left == 0
        reward = 0.1 * action.value + (self._member if done else 0)
        return Seen(text="Played.", done=done, reward=reward)

    def _perform(self, when: str) -> None:
        act = self._world.act(when, self._number)
        time.sleep(act.seconds)
        if act.gate is not None:
            self._world.arrive(act.gate, self._number)
            while not self._world.is_open(act.gate):
                time.sleep(_LOOK_EVERY)
            self._world.depart(act.gate, self._number)
        if act.error is not None:
            raise RuntimeError(act.error)


class CountedAsyncEnvironment(CountedEnvironment):
    """The same on the event loop, which a script with ``blocks`` does not give back."""

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> Seen:
        self._world.record("reset", self._number)
        await self._perform_async("reset")
        return self._begun(given)

    async def step_async(self, action: Play, timeout_s: float | None = None, **_: Any) -> Seen:
        self._world.record("step", self._number)
        await self._perform_async("step")
        return self._played(action)

    async def _perform_async(self, when: str) -> None:
        act = self._world.act(when, self._number)
        if act.blocks:
            self._perform(when)
            return
        await asyncio.sleep(act.seconds)
        if act.gate is not None:
            self._world.arrive(act.gate, self._number)
            while not self._world.is_open(act.gate):  # noqa: ASYNC110 - opened by another process
                await asyncio.sleep(_LOOK_EVERY)
            self._world.depart(act.gate, self._number)
        if act.error is not None:
            raise RuntimeError(act.error)
