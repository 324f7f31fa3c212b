"""Trying again: how long, how often, and with which pauses."""

import random
import time
from collections.abc import Callable

from mtrl_cli.servers.errors import Verdict

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 10.0


class Budget:
    """What one logical call may spend on trying: a deadline, and a number of attempts that may
    have been executed. Those that surely were not, as when the server is away or refuses for now,
    go on until the deadline.

    Args:
        again: called before each attempt but the first one, with what ended the last one, and
            the seconds until the next.
    """

    def __init__(
        self,
        seconds: float,
        attempts: int,
        again: Callable[[Verdict, float], None] = lambda verdict, pause: None,
    ) -> None:
        self.deadline = time.monotonic() + seconds
        # An attempt with less time than this would end without a reply: unknown, not refused.
        self._least = min(1.0, 0.1 * seconds)
        self._attempts = attempts
        self._again = again
        self._failures = 0
        self._unclear = 0

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def pause(self, verdict: Verdict) -> float | None:
        """Seconds to wait before the next attempt, after one that ended in ``verdict``; None when
        the budget is spent."""
        self._failures += 1
        self._unclear += verdict.outcome != "transient"
        if self._unclear >= self._attempts:
            return None
        wait = backoff(self._failures - 1, verdict.retry_after)
        if wait + self._least >= self.left:
            return None
        self._again(verdict, wait)
        return wait


def backoff(failures: int, retry_after: float | None = None) -> float:
    """Seconds to wait after ``failures`` earlier ones, with jitter.

    Never less than asked for, and never less than without being asked: a server may ask for 0.
    """
    pause = min(_FIRST_PAUSE * 2.0 ** min(failures, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
    if retry_after is None:
        return float(pause)
    return max(retry_after + random.uniform(0.0, max(0.05, 0.2 * retry_after)), float(pause))
