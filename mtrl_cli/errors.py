"""The errors that end a command. Their text is one line, fit for a user."""


class MtrlError(Exception):
    """Ends the command with exit code 1."""


class UsageError(MtrlError):
    """Usage, configuration or a missing secret: ends the command with exit code 2."""
