"""The ways to stop a run, and what each of them promises."""

import signal
from dataclasses import dataclass
from signal import Signals
from typing import Literal

Depth = Literal["drain", "stop", "abort", "kill"]


@dataclass(frozen=True)
class Way:
    """``signals`` are sent one after the other; ``cancel`` are the options of ``mtrl cancel``."""

    name: str
    depth: Depth
    code: int
    signals: tuple[Signals, ...] = ()
    cancel: tuple[str, ...] | None = None

    @property
    def graceful(self) -> bool:
        """The run itself returns what it borrowed; after the others, `mtrl cancel` does."""
        return self.depth in ("drain", "stop")


_INT, _TERM, _KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL

WAYS = (
    Way("SIGINT", "drain", 130, (_INT,)),
    Way("SIGINT ×2", "stop", 130, (_INT, _INT)),
    Way("SIGTERM", "drain", 143, (_TERM,)),
    Way("cancel", "drain", 130, cancel=()),
    Way("cancel --now", "stop", 130, cancel=("--now",)),
    Way("SIGINT ×3", "abort", 130, (_INT, _INT, _INT)),
    Way("cancel --kill", "abort", 130, cancel=("--kill",)),
    Way("SIGKILL", "kill", -9, (_KILL,)),
)

BY_NAME = {way.name: way for way in WAYS}


def applies(phase: str, way: Way) -> bool:
    """Before its first contact with the server a run has no folder to be cancelled by."""
    return way.cancel is None or phase != "first contact"
