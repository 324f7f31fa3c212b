"""How hard the calls of one service go, for a person who wonders why nothing moves.

Nothing is decided by it. A cause is taken to last as long as the wait that it has brought about and
`LONGER`; a reply that is what was hoped for ends the second part of that.
"""

import time
from dataclasses import dataclass

from mtrl_cli.servers.errors import Verdict

LONGER = 10.0
"""Seconds that the next try may take to fail."""


@dataclass(frozen=True, slots=True)
class Strain:
    """What is known of it at a moment."""

    reissued: int = 0
    """Calls made again so far, after a failure that let them be: turns, logprobs, training
    calls."""
    waits: str | None = None
    """Why calls wait, in the server's words or by the connection's fate; None where none is known
    to."""


class Trouble:
    """What a service's calls have met."""

    def __init__(self) -> None:
        self._reissued = 0
        self._says = ""
        self._until = 0.0
        self._surely = 0.0
        """Until when a call waits, whatever the server answers to others."""

    def again(self, verdict: Verdict, pause: float) -> None:
        """A call is made again after ``pause`` seconds."""
        self._reissued += 1
        self.waits(verdict.says, pause)
        self._surely = time.monotonic() + pause

    def waits(self, says: str, seconds: float) -> None:
        """A call waits for so long, unless the server answers before."""
        self._says, self._until = says, time.monotonic() + seconds + LONGER

    def over(self) -> None:
        """The server answers again."""
        self._until = self._surely

    @property
    def strain(self) -> Strain:
        return Strain(self._reissued, self._says if time.monotonic() < self._until else None)
