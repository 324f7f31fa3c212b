"""How a command fails: one line that says what, where and what to write instead."""

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from mtrl_cli.errors import MtrlError, UsageError

if TYPE_CHECKING:
    from mtrl_cli.config.compose import Composed

FAILED = MtrlError.exit_code

_LONGEST = 1_000
"""Characters of an internal error's text, which may quote all that a file holds."""


class Teller:
    """Tells errors on stderr. ``redact`` is set once it is known what is secret, ``composed`` once
    there is an experiment: an error that begins with a key of it says what set the key."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self.redact: Callable[[str], str] = lambda text: text
        self.composed: Composed | None = None

    def concerns(self, composed: "Composed") -> None:
        """From now on errors are about this experiment."""
        # A configuration may have copied a secret into what an error quotes.
        self.redact, self.composed = composed.redact, composed

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
        for line in _lines(inner, self._set_by(inner)):
            screen.prose(harmless(self.redact(line)), len("error: "))
        return inner.exit_code if isinstance(inner, MtrlError) else FAILED

    def _set_by(self, error: BaseException) -> str | None:
        """What set the key that an error of usage is about, where it does not say so itself."""
        known = getattr(error, "at", None)
        if isinstance(known, str) or self.composed is None or not isinstance(error, UsageError):
            return known
        first, *more = str(error).splitlines() or [""]
        return None if more else self.composed.setter(first)


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


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt` while inside. What the process was started to ignore stays
    ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def innermost(error: BaseException) -> BaseException:
    """The first failure inside nested groups of failures."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _lines(error: BaseException, at: str | None) -> Iterator[str]:
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
    for label, told in (("at", at), ("hint", getattr(error, "hint", None))):
        if isinstance(told, str):
            yield f"{label:>5}: {told}"
