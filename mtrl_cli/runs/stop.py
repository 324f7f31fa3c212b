"""The request to stop a run, and how far it goes. It only ever rises."""

import asyncio
from enum import IntEnum


class Stage(IntEnum):
    RUN = 0
    DRAIN = 1
    """Admit nothing; let issued work settle; publish and commit what was stepped."""
    STOP = 2
    """Cancel, release, publish nothing."""


class StopRequest:
    """Made inside the event loop that it stops; `request` may be called from anywhere."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stage = Stage.RUN
        self._reached = {stage: asyncio.Event() for stage in (Stage.DRAIN, Stage.STOP)}

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def draining(self) -> bool:
        return self._stage >= Stage.DRAIN

    def request(self, stage: Stage) -> None:
        """Raise the stage; safe from a signal handler and from any thread."""
        self._loop.call_soon_threadsafe(self._raise_to, stage)

    async def reached(self, stage: Stage) -> None:
        """Return once ``stage`` has been reached."""
        if stage is not Stage.RUN:
            await self._reached[stage].wait()

    def _raise_to(self, stage: Stage) -> None:
        self._stage = max(self._stage, stage)
        for reached, event in self._reached.items():
            if reached <= self._stage:
                event.set()
