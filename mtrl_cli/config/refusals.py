"""What the schema refuses, in words: the key, what it takes, and what set it.

OmegaConf ends at the first key that is wrong. `all_refused` takes that one out and merges again,
so that a user who made two mistakes reads of both.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from mtrl_cli.config.errors import ConfigError, together
from mtrl_cli.config.keys import nearest_key
from mtrl_cli.config.secrets import is_secret
from mtrl_cli.config.sources import value_at
from mtrl_cli.config.wording import wrong_type

_LONGEST = 200
"""Characters of a reason."""

SetBy = Callable[[str, Any], str]
"""Of a key and its value, what set it: the override, or the file and the line."""


def refuse_dotted(container: dict[str, Any], set_by: SetBy) -> None:
    """Refuse a key that a file writes as an override would: ``group.size: 4``.

    Raises:
        ConfigError: with what to write.
    """
    for key, value in container.items():
        if "." in key:
            section, *below = key.split(".")
            nested = reduce(lambda inner, part: f"{{{part}: {inner}}}", reversed(below), "VALUE")
            raise ConfigError(
                f"{key}: in a file, a key stands below its section",
                at=set_by(key, value),
                hint=f"write `{section}: {nested}`",
            )


def schema_error(
    error: OmegaConfBaseException, container: dict[str, Any], set_by: SetBy
) -> ConfigError:
    """One refusal; ``container`` holds the values as they were written."""
    key = str(error.full_key or "")
    value = value_at(container, key)
    at = set_by(key, value)
    if isinstance(error, ConfigKeyError):
        near = nearest_key(key)
        hint = f"did you mean {near}?" if near else "see docs/configuration.md for all keys"
        return ConfigError(f"unknown key {key!r}", at=at, hint=hint)
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return wrong_value(key, value, at, first)


def wrong_value(key: str, value: Any, at: str, reason: str = "cannot be this") -> ConfigError:
    """``value`` is not of the key's type; ``reason`` is told where there are no words for that."""
    if is_secret(key):
        return ConfigError(f"{key}: not a value of this key's type", at=at)
    interpolated = isinstance(value, str) and "${" in value
    told = None if interpolated else wrong_type(key, value)
    return ConfigError(told or f"{key}: {_shortened(reason)}", at=at)


def _shortened(text: str) -> str:
    """Without the middle, where OmegaConf quotes a whole section."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def all_refused(
    error: OmegaConfBaseException,
    container: dict[str, Any],
    set_by: SetBy,
    merge: Callable[[dict[str, Any]], Any],
) -> ConfigError:
    """All refusals of what ``merge`` refused with ``error``. Takes them out of ``container``."""
    found = []
    refused: OmegaConfBaseException | None = error
    while refused is not None:
        found.append(schema_error(refused, container, set_by))
        if not _taken_out(container, str(refused.full_key or "").partition("[")[0]):
            break
        try:
            merge(container)
        except OmegaConfBaseException as further:
            refused = further
        else:
            refused = None
    return together(found)


def _taken_out(container: dict[str, Any], key: str) -> bool:
    *parents, last = key.split(".")
    node: Any = container
    for part in parents:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        return False
    del node[last]
    return True
