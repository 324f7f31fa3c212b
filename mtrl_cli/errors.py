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
