"""Small OpenEnv environments for the backend's tests."""

import asyncio
import threading
import time
from typing import Any, ClassVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from mtrl_cli.rollout.ports import ToolError


class Move(Action):
    """What to do, and with which value."""

    do: str = "go"
    value: float | None = None


class Seen(Observation):
    text: str


class Counter(Environment):
    """Counts steps; misbehaves when told to. Class attributes record what happened."""

    action_class = Move
    live: ClassVar[int] = 0
    closed: ClassVar[int] = 0
    release: ClassVar[threading.Event] = threading.Event()

    @classmethod
    def forget(cls) -> None:
        cls.live = cls.closed = 0
        cls.release = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        type(self).live += 1
        self.thread = threading.get_ident()
        self.count = 0
        self.given: dict[str, Any] = {}

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Seen:
        self.check_thread()
        self.count = 0
        self.given = {"seed": seed, **given}
        if given.get("member") == 99:
            raise LookupError("no such member\nsecond line")
        return Seen(text=f"seed {seed} member {given.get('member')}")

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        self.check_thread()
        self.count += 1
        match action.do:
            case "raise":
                raise ZeroDivisionError("by nothing\nand more")
            case "refuse":
                raise ToolError("You cannot do that now")
            case "exit":
                raise SystemExit(3)
            case "hang":
                self.release.wait(30)
            case "sleep":
                time.sleep(action.value or 0.0)
            case "text":
                return "no observation"  # type: ignore[return-value]
            case "end":
                return Seen(text="over", done=True, reward=action.value)
        return Seen(text=f"step {self.count}", reward=action.value)

    def check_thread(self) -> None:
        if threading.get_ident() != self.thread:
            raise AssertionError("another thread")

    @property
    def state(self) -> State:
        return State(step_count=self.count)

    def close(self) -> None:
        type(self).live -= 1
        type(self).closed += 1


class Wanderer(Counter):
    """May change threads."""

    def check_thread(self) -> None:
        pass


class Alone(Counter):
    """All of its instances belong to one thread."""

    REQUIRES_SINGLE_THREAD_EXECUTOR = True


class BadReward(Wanderer):
    """Skips pydantic's checks, as a careless environment can."""

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        rewards = {"word": "high", "list": [1], "true": True, "nan": float("nan")}
        return Seen.model_construct(text="x", done=False, reward=rewards[action.do], metadata={})


class FailsToOpen(Counter):
    def __init__(self) -> None:
        raise OSError("no room")


class HangsToOpen(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.release.wait(30)


class FailsToClose(Counter):
    def close(self) -> None:
        super().close()
        raise OSError("still in use")


class Waiting(Counter):
    """Asynchronous."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        raise AssertionError("the synchronous form")

    step = reset  # type: ignore[assignment]

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> Seen:
        await asyncio.sleep(0)
        return Seen(text=f"seed {seed}")

    async def step_async(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:
        await asyncio.sleep(action.value or 0.0)
        if action.do == "timeout":
            raise TimeoutError("its own")
        return Seen(text="waited", done=action.do == "end", reward=1.0)


class PlainCoroutines(Wanderer):
    """Writes ``step`` itself as a coroutine."""

    async def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Seen:  # type: ignore[override]
        return Seen(text="awaited", reward=2.0)


class Annotated(Counter):
    """Says by its annotation which actions it takes."""

    action_class = None  # type: ignore[assignment]


class ByGeneric(Environment[Move, Seen, State]):
    """Says by its base which actions it takes."""

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Any:
        return Seen(text="r")

    def step(self, action, timeout_s=None, **_):  # type: ignore[no-untyped-def]
        return Seen(text=type(action).__name__)

    @property
    def state(self) -> State:
        return State()


class Seedless(Wanderer):
    """Its reset takes nothing, as that of OpenSpiel's environment."""

    def reset(self) -> Seen:  # type: ignore[override]
        return Seen(text="always")


class Unsaid(Environment):
    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Any: ...

    def step(self, action, timeout_s=None, **_): ...  # type: ignore[no-untyped-def]

    @property
    def state(self) -> State:
        return State()


class Half(Environment):
    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Any: ...


class NoEnvironment:
    pass
