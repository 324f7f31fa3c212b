"""Whether a run lives, as seen from any host that shares its disk.

On the run's own host its process is asked for, so that a killed run is *lost* at once. From
elsewhere only its heartbeat can be seen: a file that the run touches once a second.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.runs.processes import Standing, standing, stopped

SILENCE = 15.0
"""Seconds without a heartbeat after which a run that cannot be seen counts as lost."""

_CONFIRM_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Silence:
    """Of a process that is there: it gives no sign of life, and hears no request either."""

    seconds: float
    stopped: bool
    """By Ctrl-Z or SIGSTOP. Else it is frozen, or compiled code in it keeps Python's lock."""


def lives(state: Mapping[str, Any], folder: Path) -> bool:
    """Whether the process that wrote ``state`` (``run.json``) is there."""
    seen = standing(state)
    if seen is Standing.UNSEEN:
        # A clock that differs from the disk's may put the last beat in the future.
        return abs(time.time() - _last_beat(folder)) < SILENCE
    return seen is Standing.ALIVE


def silence(state: Mapping[str, Any], folder: Path) -> Silence | None:
    """How a process that is there gives no sign of life; None where it does. An old heartbeat is
    watched for a while, as the disk's clock may differ from ours."""
    if standing(state) is not Standing.ALIVE:
        return None
    quiet = time.time() - _last_beat(folder)
    if stopped(state):
        return Silence(max(quiet, 0.0), stopped=True)
    if abs(quiet) < SILENCE or _beats(folder) or standing(state) is not Standing.ALIVE:
        return None
    return Silence(max(quiet, _CONFIRM_SECONDS), stopped=False)


def surely_gone(state: Mapping[str, Any], folder: Path) -> bool:
    """Like not `lives`, but where it hangs on clocks, the heartbeat is watched for a while."""
    if lives(state, folder):
        return False
    if standing(state) is Standing.GONE:
        return True
    return not _beats(folder)


def _beats(folder: Path) -> bool:
    """Whether the heartbeat moves, watched for `_CONFIRM_SECONDS`."""
    before = _last_beat(folder)
    deadline = time.monotonic() + _CONFIRM_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if _last_beat(folder) != before:
            return True
    return False


def _last_beat(folder: Path) -> float:
    for name in ("heartbeat", "run.json"):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0
