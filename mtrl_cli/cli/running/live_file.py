"""``live.json``: what the screen of a run shows of the moment, for `mtrl watch` and `mtrl show`.

Written by the run every second, taken away at its end. It is not part of what a run promises:
a disk that takes no more of it costs a watcher the moment, and the run nothing.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.display.snapshot import restore
from mtrl_cli.display.state import RunState
from mtrl_cli.runs.files import redacted

NAME = "live.json"

EVERY = 1.0
"""Seconds between two writings."""

STALE = 15.0
"""Seconds after which it tells nothing of the moment any more."""


class LiveFile:
    """The writing side."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._next = 0.0
        self._path: Path | None = None

    def write(self, folder: str, now: float, record: Callable[[], Mapping[str, Any]]) -> None:
        """Write what ``record`` says, if the last time is long enough ago."""
        if now < self._next:
            return
        self._next = now + EVERY
        self._path = Path(folder) / NAME
        beside = self._path.with_name(f"{NAME}.tmp")
        with contextlib.suppress(OSError):
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(redacted(record(), self._redact)))
            beside.replace(self._path)

    def remove(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def read_live(folder: Path) -> Mapping[str, Any] | None:
    """What the run wrote last; None where that is not of this moment."""
    path = folder / NAME
    try:
        if abs(time.time() - path.stat().st_mtime) > STALE:
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def restored(state: RunState, folder: Path, now: float) -> bool:
    """Put the moment that the run in ``folder`` has told into ``state``, whose clock says ``now``;
    False where there is none."""
    record = read_live(folder)
    if record is not None:
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            restore(state, record, now)
            return True
    return False
