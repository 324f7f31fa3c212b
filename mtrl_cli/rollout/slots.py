"""Slots: how many episodes are in flight, and how many begin in one pass of the event loop.

To begin an episode is a few operations without a wait between them. A thousand that are admitted
at once would begin in one pass, and nothing else would be done for a tenth of a second; so
`PER_PASS` of them begin, then everybody else has a turn. They begin in the order in which their
slots were asked for.
"""

import asyncio
from collections import deque
from types import TracebackType

PER_PASS = 4


class Slots:
    """``async with slots`` for as long as an episode is in flight.

    Args:
        concurrency: the most that are in flight at once.
    """

    def __init__(self, concurrency: int) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._left = PER_PASS
        """How many more may begin in this pass."""

    async def __aenter__(self) -> None:
        await self._free.acquire()
        try:
            await self._turn()
        except BaseException:
            self._free.release()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._free.release()

    async def _turn(self) -> None:
        if self._left and not self._waiting:
            self._count()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _count(self) -> None:
        """One more begins; the first one of a pass sees to the next pass."""
        if self._left == PER_PASS:
            asyncio.get_running_loop().call_soon(self._next_pass)
        self._left -= 1

    def _next_pass(self) -> None:
        self._left = PER_PASS
        while self._left and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # cancelled meanwhile
                self._count()
                waiter.set_result(None)
