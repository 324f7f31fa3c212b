"""The one error of configuration: what is wrong, where it stands, what to write instead."""

from mtrl_cli.errors import UsageError


class ConfigError(UsageError):
    """Refuses an experiment before anything is contacted or created.

    ``at`` is the override, file or key that is wrong; ``hint`` is what to write instead.
    """

    def __init__(self, message: str, *, at: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.hint = hint
