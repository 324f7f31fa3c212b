"""The death watch: a server started for somebody ends when that somebody is gone.

Two ways, because neither alone is enough. Where the kernel offers it (Linux), it signals this
process when the thread that started it ends; as that may be a mere thread of a living parent, the
signal only asks for a look. And a thread looks every half second: at the parent's pid and start
time, so that a pid given to another process is not taken for the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PERIOD = 0.5
GRACE = 3.0
_PR_SET_PDEATHSIG = 1
_SIGNAL = signal.SIGUSR2


def start_time(pid: int) -> str | None:
    """What tells this process from a later one with its pid; None when it is dead.

    Without /proc it is only whether the pid exists.
    """
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "alive"
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    return None if fields[0] in "ZX" else fields[19]


class ParentWatch:
    """Calls `on_death` once, from its thread, when the parent is gone.

    If the process is still there `GRACE` seconds later, it is ended without ceremony.
    """

    def __init__(self, parent_pid: int, on_death: Callable[[], None]) -> None:
        self._pid = parent_pid
        self._on_death = on_death
        self._is_ours = os.getppid() == parent_pid
        self._born = start_time(parent_pid)
        # Its put may be interrupted by another signal that puts (an Event's set would then wait for
        # itself, and the process live on): the kernel signals for each of the parent's threads.
        self._looks: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = False
        if self._born is None:
            raise ProcessLookupError(f"no process {parent_pid}")
        self._ask_kernel()
        self._thread = threading.Thread(target=self._run, name="parent-watch", daemon=True)
        self._thread.start()

    def _ask_kernel(self) -> None:
        if not sys.platform.startswith("linux"):
            return
        with contextlib.suppress(OSError, AttributeError, ValueError):
            signal.signal(_SIGNAL, lambda *_: self._looks.put(None))
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_SIGNAL), 0, 0, 0)

    def _alive(self) -> bool:
        if self._is_ours and os.getppid() != self._pid:
            return False
        return start_time(self._pid) == self._born

    def _run(self) -> None:
        while self._alive():
            self._wait(PERIOD)
            if self._ended:
                return
        self._on_death()
        end = time.monotonic() + GRACE
        while not self._ended and (left := end - time.monotonic()) > 0:
            self._wait(left)
        if not self._ended:
            os._exit(1)

    def _wait(self, seconds: float) -> None:
        """Until there is something to look at, or so long."""
        with contextlib.suppress(queue.Empty):
            self._looks.get(timeout=seconds)

    def stop(self) -> None:
        self._ended = True
        self._looks.put(None)
