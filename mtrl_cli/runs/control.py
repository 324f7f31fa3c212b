"""How a run is told to stop from outside: a file in its folder.

``control/stop.json`` holds the request; it only ever rises, and names the attempt that it is
meant for, so that it does not stop a later one. A daemon thread of the run looks at it, and
touches ``heartbeat``: an event loop that is blocked starves neither. No signal is sent and no
socket opened, so it works wherever the disk is shared.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from mtrl_cli.runs.files import file_at, write_document

POLL = 0.5
"""Seconds between two looks at the request; a beat goes out at every second look."""


class Ask(IntEnum):
    """How far a run is to be stopped."""

    DRAIN = 1
    STOP = 2
    KILL = 3

    @property
    def word(self) -> str:
        return self.name.lower()


def request(folder: Path, ask: Ask, attempt: int) -> Ask:
    """Ask the run's attempt to stop; what it is asked for now, which may be more."""
    with locked(folder):
        asked = max(ask, requested(folder, attempt) or ask)
        text = json.dumps({"ask": asked.word, "attempt": attempt, "time": round(time.time(), 3)})
        write_document(_request(folder), text + "\n")
    return asked


def requested(folder: Path, attempt: int) -> Ask | None:
    """What was asked of this attempt."""
    try:
        told = json.loads(file_at(_request(folder)).read_text(encoding="utf-8"))
        return Ask[str(told["ask"]).upper()] if told["attempt"] == attempt else None
    except (OSError, ValueError, LookupError, TypeError):
        return None  # not there, or nothing that we wrote


@contextmanager
def locked(folder: Path, *, interval: float = 0.05) -> Iterator[None]:
    """Keep others who would settle this run out; waits for them, and can be interrupted."""
    (folder / "control").mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / "control" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _try_lock(descriptor):
            time.sleep(interval)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class RunControl:
    """The run's own side: beats, and passes on each request once.

    ``told`` is called in the thread of the control.
    """

    def __init__(self, folder: Path, attempt: int, told: Callable[[Ask], None]) -> None:
        self._folder = folder
        self._attempt = attempt
        self._told = told
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mtrl-control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End it. Idempotent."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(2 * POLL)

    def _run(self) -> None:
        reached = 0
        beats = True
        while True:
            if beats:
                beat(self._folder)
            beats = not beats
            asked = requested(self._folder, self._attempt)
            if asked is not None and asked > reached:
                reached = asked
                self._told(asked)
            if self._end.wait(POLL):
                return


def beat(folder: Path) -> None:
    """Touch the heartbeat. A disk that fails for a moment does not end the beating."""
    with contextlib.suppress(OSError):
        (folder / "heartbeat").touch(mode=0o600)


def _request(folder: Path) -> Path:
    return folder / "control" / "stop.json"
