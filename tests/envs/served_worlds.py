"""OpenEnv environments that misbehave when told to, for a server process of its own."""

import asyncio
import os
import threading
import time
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import field_validator


class Do(Action):
    do: str = "go"
    value: float | None = None
    text: str = ""

    @field_validator("do")
    @classmethod
    def known(cls, do: str) -> str:
        if do == "invalid":
            raise ValueError("not that")
        return do


class Saw(Observation):
    text: str
    anything: Any = None


class Misbehaving(Environment):
    """``greeting`` comes from env.params."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, greeting: str = "hello") -> None:
        super().__init__()
        self.greeting = greeting
        self.steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Saw:
        self.steps = 0
        return Saw(text=f"{self.greeting} {seed}")

    def step(self, action: Do, timeout_s: float | None = None, **_: Any) -> Saw:
        self.steps += 1
        match action.do:
            case "raise":
                raise LookupError("nothing here\nsecond line")
            case "sleep":
                time.sleep(action.value or 0.0)
            case "die":
                print("dying as told", flush=True)
                os._exit(3)
            case "nan":
                return Saw(text="nan", reward=float("nan"))
            case "odd":
                return Saw(text="odd", anything=threading.Lock())
            case "long":
                return Saw(text="x" * int(action.value or 0))
            case "end":
                return Saw(text="over", done=True, reward=1.0)
        return Saw(text=f"{action.do} {self.steps}", reward=0.5)

    @property
    def state(self) -> State:
        raise RuntimeError("it cannot tell its state")


class Blocking(Misbehaving):
    """Asynchronous, and blocks its server's loop."""

    async def step_async(self, action: Do, timeout_s: float | None = None, **_: Any) -> Saw:
        time.sleep(action.value or 0.0)  # noqa: ASYNC251 - as a careless one does
        await asyncio.sleep(0)
        return Saw(text="blocked")


class Single(Misbehaving):
    SUPPORTS_CONCURRENT_SESSIONS = False
