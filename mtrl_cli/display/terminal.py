"""The terminal itself: what it can show, and surviving its loss.

A run outlives its screen. When a pipe's reader dies (``mtrl train | tee log`` and Ctrl-C) or the
terminal is closed, writing fails; `Screen` then sends everything to nowhere, so that the work
that was issued can still settle.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from mtrl_cli.display.wrapping import HANGING, wrapped


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a terminal can show."""

    live: bool
    """It can be repainted."""
    colour: bool
    unicode: bool
    reflows: bool
    """It breaks lines anew when its width changes. Most do; xterm and GNU screen cut them off."""


def abilities(environ: Mapping[str, str] | None = None) -> Abilities:
    """What standard output can show. Both outputs must be terminals for a live screen."""
    environ = os.environ if environ is None else environ
    terminal = all(_is_terminal(stream) for stream in (sys.stdout, sys.stderr))
    live = terminal and environ.get("TERM", "") not in ("dumb", "") and not environ.get("CI")
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return Abilities(
        live=live,
        colour=live and not environ.get("NO_COLOR"),
        unicode=encoding.startswith("utf"),
        reflows=not environ.get("XTERM_VERSION") and not environ.get("STY"),
    )


def columns(stream: TextIO | None = None) -> int | None:
    """The width of ``stream``, else of standard output; None where it is no terminal."""
    return shutil.get_terminal_size().columns if _is_terminal(stream or sys.stdout) else None


def in_background() -> bool:
    """Whether standard output is the terminal that this process belongs to, and a shell or another
    of its jobs has it now."""
    try:
        return os.tcgetpgrp(1) != os.getpgrp()
    except (OSError, AttributeError):  # no terminal, another one, or Windows
        return False


def claim_stdout() -> TextIO:
    """Standard output for the caller alone: what anything else prints goes to standard error.

    For output that a program reads: an environment in this process, or a child process, may
    print too.
    """
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8", errors="backslashreplace")


class Screen:
    """A text stream that cannot fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = False
        # What the terminal's encoding lacks is replaced, not raised.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[attr-defined]

    def write(self, text: str) -> int:
        if not self.lost:
            try:
                return self._stream.write(text)
            except (OSError, ValueError):
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lose()

    def line(self, text: str = "") -> None:
        self.write(text + "\n")
        self.flush()

    def prose(self, text: str, indent: int = HANGING) -> None:
        """Print a sentence, whose secrets are taken out: on a terminal it is broken between words,
        all but its first line indented."""
        for line in wrapped(text, columns(self._stream), indent):
            self.line(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self) -> None:
        """Point the file descriptor at nothing: what is buffered, and what others write, too."""
        self.lost = True
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False
