"""The request to stop a run, and how far it goes. It only ever rises."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from enum import IntEnum

_INTERRUPTED = 130


class Stage(IntEnum):
    RUN = 0
    DRAIN = 1
    """Admit nothing; let issued work settle; publish and commit what was stepped."""
    STOP = 2
    """Cancel, release, publish nothing."""


_SIGNALS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGHUP: "closing the terminal"}


def signal_name(number: int) -> str:
    """What a person calls a signal that ends a run."""
    return _SIGNALS.get(number) or signal.Signals(number).name


def _leave() -> None:
    os._exit(_INTERRUPTED)


class StopRequest:
    """Made inside the event loop that it stops; the rest may be called from anywhere.

    Args:
        abort: ends the process at once, after what it has to say; it must not return.
    """

    def __init__(self, abort: Callable[[], None] = _leave) -> None:
        self._loop = asyncio.get_running_loop()
        self._stage = Stage.RUN
        self.cause = "the user"
        """Who asked for the stop, or what: ``SIGTERM``, ``Ctrl-C``, ``mtrl cancel``."""
        self._reached = {stage: asyncio.Event() for stage in (Stage.DRAIN, Stage.STOP)}
        self.abort = abort
        """The last resort: settle nothing, end the process. Works with a blocked event loop."""

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def reason(self) -> str:
        """Why a run that was asked to stop has ended."""
        return f"stopped by {self.cause}"

    @property
    def draining(self) -> bool:
        return self._stage >= Stage.DRAIN

    def request(self, stage: Stage, cause: str | None = None) -> None:
        """Raise the stage; safe from a signal handler and from any thread. The first ``cause``
        stays."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to stop
            self._loop.call_soon_threadsafe(self._raise_to, stage, cause)

    async def reached(self, stage: Stage) -> None:
        """Return once ``stage`` has been reached."""
        if stage is not Stage.RUN:
            await self._reached[stage].wait()

    def _raise_to(self, stage: Stage, cause: str | None) -> None:
        if cause is not None and self._stage is Stage.RUN:
            self.cause = cause
        self._stage = max(self._stage, stage)
        for reached, event in self._reached.items():
            if reached <= self._stage:
                event.set()
