"""Waiting together: what a server's word that nobody may send means for all who would.

Its wait is cut short when the run ends: see `transport.Transport.stop_waiting`.
"""

import random
import time
from collections.abc import Awaitable, Callable

_SPREAD = 0.2
"""Of a pause: over so much of it those who waited start."""


class Limiter:
    """What a server's 429 or 402 means for everybody: nobody sends until it is over.

    Those who waited start spread over a fraction of the pause, not all in one moment.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._pause = 0.0
        self.says = ""
        self.held = 0

    @property
    def closed(self) -> bool:
        return self._until > 0.0 and time.monotonic() < self._until

    @property
    def left(self) -> float:
        """Seconds until it opens; 0 where it is open."""
        return max(0.0, self._until - time.monotonic())

    @property
    def holds(self) -> bool:
        """Somebody may be waiting: it is closed, or those who waited start one by one."""
        return self._until > 0.0 and time.monotonic() < self._until + _SPREAD * self._pause

    def hold(self, retry_after: float | None, says: str) -> None:
        """Close for ``retry_after`` seconds; without one for longer each time in a row.

        Args:
            says: the server's words, for those who wait in vain.
        """
        self.says = says
        now = time.monotonic()
        if not retry_after:  # a server may ask for 0, or for a moment that is past
            recent = now < self._until + 2 * self._pause
            retry_after = min(2 * self._pause, 10.0) if recent and self._pause else 0.25
        self._pause = retry_after
        self._until = max(self._until, now + retry_after)
        self.held += 1

    async def wait(self, pause: Callable[[float], Awaitable[bool]]) -> bool:
        """Wait until it opens. False: ``pause`` says that the wait is off."""
        while (left := self.left) > 0:  # it moves
            if not await pause(left + random.uniform(0.0, _SPREAD * self._pause)):
                return False
        return True
