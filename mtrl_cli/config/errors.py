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


def key_of(problem: str) -> str:
    """The key that a problem begins with: ``group.size is 1``, ``run.dir: …``."""
    return problem.split(" ")[0].rstrip(":")


MOST = 20
"""Mistakes that one error tells of."""


def together(errors: Sequence[ConfigError], *, beyond: int = 0, more: bool = False) -> ConfigError:
    """All that is wrong as one error: a line for each, with where it stands and what to write.

    Args:
        beyond: how many there are besides ``errors``.
        more: there are further ones, uncounted.
    """
    count = len(errors) + beyond
    if count == 1 and not more:
        return errors[0]
    told = [f"{'more than ' if more else ''}{count:,} settings are wrong"]
    for error in errors[:MOST]:
        where = f"{error.at}: " if error.at else ""
        told.append(where + "; ".join(filter(None, (error.message, error.hint))))
    left = count - len(told) + 1
    if left or more:
        told.append(f"and {f'{left:,} ' if left else ''}more")
    return ConfigError("\n".join(told))
