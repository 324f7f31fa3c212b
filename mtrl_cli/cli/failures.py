"""How a command fails: one line that says what, where and what to write instead."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from mtrl_cli.errors import MtrlError

FAILED = MtrlError.exit_code

_LONGEST = 1_000
"""Characters of an internal error's text, which may quote all that a file holds."""


class Teller:
    """Tells errors on stderr. ``redact`` is set once it is known what is secret."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self.redact: Callable[[str], str] = lambda text: text

    def tell(self, error: BaseException) -> int:
        """Print ``error``; the exit code that it means.

        Its text may quote a model, an environment or a server.
        """
        from mtrl_cli.display.terminal import Screen
        from mtrl_cli.display.text import harmless

        screen = Screen(sys.stderr)
        if self._debug:
            screen.write(self.redact("".join(traceback.format_exception(error))))
        inner = innermost(error)
        for line in _lines(inner):
            screen.line(harmless(self.redact(line)))
        return inner.exit_code if isinstance(inner, MtrlError) else FAILED


@contextmanager
def told_in_one_line(*, debug: bool) -> Iterator[Teller]:
    """Turn what is raised inside into lines on stderr and an exit code."""
    teller = Teller(debug=debug)
    try:
        yield teller
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        raise typer.Exit(teller.tell(error)) from None


def innermost(error: BaseException) -> BaseException:
    """The first failure inside nested groups of failures."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _lines(error: BaseException) -> Iterator[str]:
    if isinstance(error, OSError) and error.filename is not None:
        yield f"error: {error.filename}: {error.strerror}"
        return
    if not isinstance(error, MtrlError):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        yield f"internal error: {text} (run again with --debug for the traceback)"
        return
    first, *more = str(error).splitlines() or [type(error).__name__]
    yield f"error: {first}"
    yield from (f"       {line}" for line in more)
    for label in ("at", "hint"):
        if isinstance(told := getattr(error, label, None), str):
            yield f"{label:>5}: {told}"
