"""The one error of configuration: what is wrong, where it stands, what to write instead."""

from collections.abc import Sequence

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


def together(errors: Sequence[ConfigError]) -> ConfigError:
    """All that is wrong as one error: a line for each, with where it stands and what to write."""
    if len(errors) == 1:
        return errors[0]
    told = [f"{len(errors)} settings are wrong"]
    for error in errors:
        where = f"{error.at}: " if error.at else ""
        told.append(where + "; ".join(filter(None, (error.message, error.hint))))
    return ConfigError("\n".join(told))
