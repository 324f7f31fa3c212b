"""What somebody else's code raised or returned, in words of one line.

Making those words runs that code (its ``__str__``, its ``__repr__``), which may raise anything:
nothing here does.
"""

import inspect
from types import CodeType
from typing import Any, cast

_LONGEST = 500
"""Characters of somebody else's message that an error line repeats."""

_LONGEST_VALUE = 80
"""Characters of somebody else's value."""


def text_of(error: object) -> str | None:
    """The text of an exception; None where making it raises."""
    try:
        return str(error)
    except BaseException:
        return None


def line(error: object) -> str:
    """The first line of an exception's text, of bearable length."""
    text = (text_of(error) or "").strip()
    if not text:
        return "(no message)"
    return _cut(text.splitlines()[0] + _finding(error), _LONGEST)


def told(error: object) -> str:
    """An exception by its kind and its first line."""
    return f"{type(error).__name__}: {line(error)}"


def shown(value: object) -> str:
    """A value as Python writes it, of bearable length."""
    try:
        return _cut(repr(value), _LONGEST_VALUE)
    except BaseException:
        return f"(an object of {type(value).__name__})"


def written_at(function: object) -> str:
    """`` (FILE:LINE)`` of a function or method; empty where it is not written in Python."""
    code = getattr(inspect.unwrap(cast("Any", function)), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if isinstance(code, CodeType) else ""


def untrusted(error: BaseException) -> str | None:
    """What to say of an error about a server's TLS certificate, aiohttp's or the ssl module's;
    None of any other."""
    why = getattr(getattr(error, "certificate_error", error), "verify_message", None)
    if why is None:
        return None
    return (
        f"the server's TLS certificate is not trusted ({why}); set SSL_CERT_FILE to a file with"
        " the certificate that signed it"
    )


def _finding(error: object) -> str:
    """The first finding of pydantic's error, whose first line has only their number."""
    if not type(error).__module__.startswith("pydantic"):
        return ""
    try:
        first = cast("Any", error).errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f": {place}: {first['msg']}" if place else f": {first['msg']}"
    except Exception:  # its own texts may be somebody else's, too
        return ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
