"""Signals while a run is in the foreground.

    first SIGINT or SIGTERM  → drain: nothing new starts, issued work settles
    second                   → stop: work is dropped, what was borrowed is returned
    third                    → abort: the terminal is restored, a report is written, exit at once

    Ctrl-Z and Ctrl-\\ do what they always do, after the terminal was given back.

`signal.signal` is used and not the loop's handlers, because a blocked event loop would never
get to the third one. A handler runs between two bytecodes of anything, so it only counts, wakes
the loop, and writes with `os.write`.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from mtrl_cli.display.keyboard import KEYBOARD
from mtrl_cli.display.terminal import in_background
from mtrl_cli.runs.stop import Stage, StopRequest, signal_name

DEBOUNCE = 0.2
"""Seconds within which a second signal counts as the same: `uv run` and others deliver twice."""

INTERRUPTED = 128 + signal.SIGINT

_SHOW_CURSOR = b"\x1b[?25h"
_HIDE_CURSOR = b"\x1b[?25l"


class Signals:
    """Counts signals and turns them into stages of a `StopRequest`."""

    def __init__(self, *, last_words: Callable[[], str]) -> None:
        self._last_words = last_words
        self._stop: StopRequest | None = None
        self._count = 0
        self._last = -DEBOUNCE
        self._first: int | None = None

    @property
    def code(self) -> int | None:
        """The exit code of a run that was stopped by a signal; None if none came."""
        return None if self._first is None else 128 + self._first

    @contextlib.contextmanager
    def handled(self, stop: StopRequest, *, goes_on: bool = False) -> Iterator[None]:
        """Handle signals while inside. What the process was started to ignore stays ignored.

        Once a run is over, one more Ctrl-C must not cut its last words short or change its exit
        code: it is ignored, unless the process ``goes_on`` after a run that nobody stopped.
        """
        self._stop = stop
        handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
            signal.SIGINT: self._request,
            signal.SIGTERM: self._request,
            signal.SIGHUP: self._hang_up,
            signal.SIGTSTP: suspend,
            signal.SIGQUIT: leave,
        }
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, previous in before.items():
                over = self._count > 0 or not goes_on
                ignored = over and number in (signal.SIGINT, signal.SIGTERM)
                signal.signal(number, signal.SIG_IGN if ignored else previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < DEBOUNCE:
            return
        self._last = now
        self._count += 1
        if self._first is None:
            self._first = number
        if self._count > Stage.STOP:
            self.abort(128 + number)
        assert self._stop is not None
        self._stop.request(Stage(self._count), signal_name(number))

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        """The terminal is gone; that is a request to drain, and never more than one."""
        if self._count == 0:
            self._request(number, frame)

    def abort(self, code: int = INTERRUPTED) -> NoReturn:
        """Restore the terminal, say the last words, end the process. Works from any thread."""
        text = self._report().encode("utf-8", "replace") + b"\n"
        give_terminal_back()
        with contextlib.suppress(OSError):
            os.write(2, text)
        os._exit(code)

    def _report(self) -> str:
        """The last words, which a thread may find in the middle of a change."""
        for _ in range(3):
            with contextlib.suppress(RuntimeError):
                return self._last_words()
        return "aborted"


def suspend(number: int, frame: FrameType | None) -> None:
    """Ctrl-Z: give the shell its cursor and its keyboard, sleep, and take the cursor again if this
    goes on in the foreground; the screen takes the keyboard when it draws."""
    give_terminal_back()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, suspend)
    if os.isatty(1) and not in_background():
        with contextlib.suppress(OSError):
            os.write(1, _HIDE_CURSOR)


def leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-\\: die of the signal as one would have, but not with the terminal in hand."""
    give_terminal_back()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def give_terminal_back(then: bytes = b"\r\n") -> None:
    """Show the cursor and echo what is typed, where there is a terminal; ``then`` leaves the line
    that the screen was at. In the background both are somebody else's."""
    KEYBOARD.give_back()
    if os.isatty(1) and not in_background():
        with contextlib.suppress(OSError):
            os.write(1, _SHOW_CURSOR + then)
