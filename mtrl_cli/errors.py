"""The errors that end a command. Their text is one line, fit for a user."""

from typing import ClassVar


class MtrlError(Exception):
    """Ends the command with ``exit_code``."""

    exit_code: ClassVar[int] = 1

    hint: str | None = None
    """What to do about it, where that takes more than the text says."""


class UsageError(MtrlError):
    """Usage, configuration or a missing secret."""

    exit_code = 2


def text_of(error: object) -> str | None:
    """The text of somebody else's exception; None where making it raises, whatever that is."""
    try:
        return str(error)
    except BaseException:
        return None


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
