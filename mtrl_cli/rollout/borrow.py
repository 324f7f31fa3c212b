"""One borrow: what is held, where it lives, and how far it is. `resources` keeps the register."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Holding(StrEnum):
    REQUESTED = "requested"
    HELD = "held"
    RETURNING = "returning"
    RELEASED = "released"
    QUARANTINED = "quarantined"


class Journal(Protocol):
    """Where borrows are recorded; `mtrl_cli.runs.ledger.Ledger` is one."""

    def borrow(self, key: str, state: str, **facts: Any) -> None: ...


@dataclass(slots=True)
class Borrow:
    """One borrow as the register knows it."""

    key: str
    kind: str
    external: bool
    place: str
    state: Holding = Holding.REQUESTED
    id: str | int | None = None
    reason: str | None = None
    """Why it is quarantined."""
    remedy: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For its record: what returning it takes when the run is gone."""

    def describe(self) -> str:
        """One line for a report: what, where, why, and how to remove it by hand."""
        name = f" {self.id}" if self.id is not None else ""
        return f"{self.kind}{name} ({self.key}) in {self.place}: {self.reason}; {self.remedy}"
