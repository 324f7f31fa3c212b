"""What somebody else's code raised or returned, in words of one line.

Making those words runs that code (its ``__str__``, its ``__repr__``), which may raise anything:
nothing here does.
"""

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
    return _cut(text.splitlines()[0], _LONGEST) if text else "(no message)"


def told(error: object) -> str:
    """An exception by its kind and its first line."""
    return f"{type(error).__name__}: {line(error)}"


def shown(value: object) -> str:
    """A value as Python writes it, of bearable length."""
    try:
        return _cut(repr(value), _LONGEST_VALUE)
    except BaseException:
        return f"(an object of {type(value).__name__})"


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


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
