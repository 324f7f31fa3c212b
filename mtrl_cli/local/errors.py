"""How the server says no.

Two ways, and only two. `RefusedError` is what validation sees before anything happened: an HTTP
status and one reason. `Failure` is what a promise ends with when its work was accepted and then
could not be done: one reason and whose fault it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Category = Literal["user", "server"]


class RefusedError(Exception):
    """A request that changed nothing: an HTTP status and one line of reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Failure:
    """The final answer of a promise whose work could not be done."""

    error: str
    category: Category


class WorkError(Exception):
    """Raised by work in a thread; becomes the promise's `Failure`."""

    def __init__(self, error: str, category: Category) -> None:
        super().__init__(error)
        self.failure = Failure(error, category)
