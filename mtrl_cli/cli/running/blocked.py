"""An event loop that stands still: where, told from a thread.

All episodes of a run share one event loop. Code of a task that waits without ``await`` (a sleep, a
blocking call over the network) holds up every other episode, the screen and Ctrl-C. The loop beats
a few times a second; a thread that misses the beat looks where the loop's thread stands.
"""

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

PATIENCE = 10.0
"""Seconds without a beat until it is told."""

_LOOK_EVERY = 1.0
_STDLIB = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_OWN = str(Path(__file__).resolve().parents[2])


class LoopWatch:
    """Made in the thread of the loop that it watches; tells each place once.

    Args:
        tell: hears one line, in the watch's thread, while the loop stands still.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._loop_thread = threading.get_ident()
        self._beat = time.monotonic()
        self._told: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mtrl-loop-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat(self) -> None:
        """The loop moves."""
        self._beat = time.monotonic()

    def close(self) -> None:
        self._end.set()
        self._thread.join(_LOOK_EVERY)

    def _run(self) -> None:
        patience = PATIENCE
        looked, worked = time.monotonic(), time.process_time()
        while not self._end.wait(min(_LOOK_EVERY, patience / 4)):
            now, work = time.monotonic(), time.process_time()
            slept = now - looked - (work - worked)
            if slept > patience / 2:
                self._beat = now  # the whole process did, as after Ctrl-Z
            looked, worked = now, work
            if now - self._beat < patience:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            place = None if frame is None else _place(frame)
            if place is not None and place not in self._told:
                self._told.add(place)
                self._tell(
                    f"nothing has moved for {now - self._beat:.0f} s: {place} holds up every"
                    " episode; write await there, or run it with asyncio.to_thread (Ctrl-C three"
                    " times leaves at once)"
                )


def _place(frame: FrameType) -> str:
    """Where it stands: in the innermost code of somebody's own, else of an installed package, else
    of all."""
    frames = [one for one in _outward(frame) if not _begins(one)] or [frame]
    at = min(frames, key=lambda one: _distance(one.f_code.co_filename))
    return f"{at.f_code.co_filename}:{at.f_lineno} in {at.f_code.co_name}"


def _distance(file: str) -> int:
    """From who can mend it."""
    if file.startswith(_OWN):
        return 2
    if file.startswith(_INSTALLED):  # which may lie below the standard library
        return 1
    return 2 if file.startswith(_STDLIB) else 0


def _begins(frame: FrameType) -> bool:
    """What every process begins with: the console script, runpy."""
    return frame.f_code.co_name == "<module>" or frame.f_code.co_filename.startswith("<frozen")


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
