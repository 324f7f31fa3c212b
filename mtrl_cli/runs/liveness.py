"""Whether a run lives, as seen from any host that shares its disk.

On the run's own host its process is asked for, so that a killed run is *lost* at once. From
elsewhere only its heartbeat can be seen: a file that the run touches once a second.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.runs.processes import Standing, standing

SILENCE = 15.0
"""Seconds without a heartbeat after which a run that cannot be seen counts as lost."""

_CONFIRM_SECONDS = 3.0


def lives(state: Mapping[str, Any], folder: Path) -> bool:
    """Whether the process that wrote ``state`` (``run.json``) is there."""
    seen = standing(state)
    if seen is Standing.UNSEEN:
        # A clock that differs from the disk's may put the last beat in the future.
        return abs(time.time() - _last_beat(folder)) < SILENCE
    return seen is Standing.ALIVE


def silence(state: Mapping[str, Any], folder: Path) -> float | None:
    """Seconds that a process which is there has given no sign of life, where they are too many: it
    is suspended, or compiled code in it keeps Python's lock. It hears no request either."""
    if standing(state) is not Standing.ALIVE:
        return None
    quiet = time.time() - _last_beat(folder)
    return quiet if quiet >= SILENCE else None


def surely_gone(state: Mapping[str, Any], folder: Path) -> bool:
    """Like not `lives`, but where it hangs on clocks, the heartbeat is watched for a while."""
    if lives(state, folder):
        return False
    if standing(state) is Standing.GONE:
        return True
    before = _last_beat(folder)
    deadline = time.monotonic() + _CONFIRM_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if _last_beat(folder) != before:
            return False
    return True


def _last_beat(folder: Path) -> float:
    for name in ("heartbeat", "run.json"):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0
