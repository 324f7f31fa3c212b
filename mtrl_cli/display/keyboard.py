"""The keyboard of a terminal whose screen is repainted: what is typed is not echoed into it.

The echo would move the cursor under the screen and leave parts of it behind. The screen takes the
keyboard when it draws; whoever ends or suspends the process gives it back, signal handlers too. A
process that dies of SIGKILL, or of a signal that nobody handles, cannot (docs/troubleshooting.md).

Only a process in the foreground touches the terminal's settings: in the background they are the
shell's, and the system would stop who changes them.
"""

import atexit
import contextlib
import os
import select
import time
from typing import Any

try:
    import termios
except ImportError:  # not on Windows
    _BROKEN: tuple[type[Exception], ...] = (OSError,)
    _CANNOT = True
else:
    _BROKEN = (OSError, termios.error)
    _CANNOT = False

_LOCAL = 3
"""Of the settings that termios lists: the local modes, echo among them."""


class Keyboard:
    """The keyboard of the terminal that this process belongs to, if there is one."""

    def __init__(self) -> None:
        self._terminal = -1
        self._before: list[Any] | None = None
        self._promised = False

    def take(self, *, keys: bool = False) -> bool:
        """Turn the echo off; with ``keys`` single keys can be read too. Nothing where that is done,
        where there is no terminal, or where this process is in the background.

        Returns:
            Whether it was done now.
        """
        if self._before is not None or _CANNOT:
            return False
        with contextlib.suppress(*_BROKEN):
            if self._terminal < 0:
                self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
            if not self._in_front():
                return False
            if not self._promised:
                atexit.register(self.give_back)
                self._promised = True
            off = termios.ECHO | (termios.ICANON if keys else 0)
            settings = termios.tcgetattr(self._terminal)
            if not settings[_LOCAL] & termios.ECHO:
                # Another one has taken it: what it was before is known to that one only, which
                # gives it back. This one takes it then.
                return False
            before = termios.tcgetattr(self._terminal)
            settings[_LOCAL] &= ~off
            # Noted before, as a signal may end the process in between, and once more after: it may
            # have suspended it.
            self._before = before
            termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
            self._before = before
            return True
        return False

    def give_back(self) -> None:
        """Make the keyboard what it was; what was typed meanwhile is dropped. Idempotent; works
        from a signal handler or a thread."""
        before = self._before
        if before is None:
            return
        with contextlib.suppress(*_BROKEN):
            if self._in_front():
                modes = termios.ECHO | termios.ICANON
                settings = termios.tcgetattr(self._terminal)
                settings[_LOCAL] = settings[_LOCAL] & ~modes | before[_LOCAL] & modes
                termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
                # Nobody saw it typed: a shell must not execute it.
                termios.tcflush(self._terminal, termios.TCIFLUSH)
        self._before = None

    def pressed(self, seconds: float) -> str:
        """The keys that are pressed within ``seconds``, as soon as there is one."""
        end = time.monotonic() + seconds
        if self._before is not None:
            with contextlib.suppress(OSError, ValueError):
                ready, _, _ = select.select([self._terminal], [], [], seconds)
                if ready and self._in_front() and (typed := os.read(self._terminal, 1024)):
                    return typed.decode("utf-8", "replace")
        # Without a terminal, or with one that is gone, time passes all the same.
        time.sleep(max(end - time.monotonic(), 0))
        return ""

    def _in_front(self) -> bool:
        return os.tcgetpgrp(self._terminal) == os.getpgrp()


KEYBOARD = Keyboard()
