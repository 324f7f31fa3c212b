"""How many sandboxes at once, how many creations a second, and backing off for all of them.

A creation takes a slot, which it keeps until its sandbox is gone, and then waits for its turn.
Turns are spaced evenly. Where the service says that it has had enough (429), nobody's turn comes
before the time that it named, or before a growing time of our own.
"""

import asyncio
import random

_FIRST, _LONGEST = 1.0, 30.0
"""Seconds of our own back-off."""


class Pace:
    """One account's, as far as this process uses it.

    Args:
        at_once: the most sandboxes that are held or being made.
        per_second: creations a second.
    """

    def __init__(self, at_once: int, per_second: float) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._spacing = 1.0 / per_second
        self._turn = asyncio.Lock()
        self._next = 0.0
        self._refusals = 0

    async def slot(self) -> None:
        await self._slots.acquire()

    def free(self) -> None:
        """A sandbox is gone, or was never made."""
        self._slots.release()

    async def turn(self) -> None:
        """Wait until a creation may be sent."""
        clock = asyncio.get_running_loop().time
        async with self._turn:
            while (left := self._next - clock()) > 0:  # noqa: ASYNC110 - it may move meanwhile
                await asyncio.sleep(left)
            self._next = clock() + self._spacing

    def accepted(self) -> None:
        self._refusals = 0

    def back_off(self, retry_after: float | None) -> None:
        """Nobody's turn comes for a while."""
        wait = min(_LONGEST, _FIRST * 2**self._refusals) * random.uniform(0.5, 1.0)
        self._refusals += 1
        if retry_after is not None:
            wait = retry_after
        until = asyncio.get_running_loop().time() + wait
        self._next = max(self._next, until)
