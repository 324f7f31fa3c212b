"""What the schema refuses, in words: the key, what it takes, and what set it.

OmegaConf ends at the first key that is wrong. `all_refused` takes that one out and merges again,
so that a user who made two mistakes reads of both.
"""

from collections.abc import Callable
from typing import Any

from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from mtrl_cli.config.errors import ConfigError, together
from mtrl_cli.config.keys import nearest_key
from mtrl_cli.config.secrets import is_secret
from mtrl_cli.config.wording import wrong_type

_LONGEST = 200
"""Characters of a reason."""

Origin = Callable[[str], str]
"""What set a key: the override, or the file."""


def schema_error(
    error: OmegaConfBaseException, container: dict[str, Any], origin: Origin
) -> ConfigError:
    """One refusal; ``container`` holds the values as they were written."""
    key = str(error.full_key or "")
    at = origin(key.partition("[")[0])
    if isinstance(error, ConfigKeyError):
        near = nearest_key(key)
        hint = f"did you mean {near}?" if near else "see docs/configuration.md for all keys"
        return ConfigError(f"unknown key {key!r}", at=at, hint=hint)
    value = _written(container, key)
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
    origin: Origin,
    merge: Callable[[dict[str, Any]], Any],
) -> ConfigError:
    """All refusals of what ``merge`` refused with ``error``. Takes them out of ``container``."""
    found = []
    refused: OmegaConfBaseException | None = error
    while refused is not None:
        found.append(schema_error(refused, container, origin))
        if not _taken_out(container, str(refused.full_key or "").partition("[")[0]):
            break
        try:
            merge(container)
        except OmegaConfBaseException as further:
            refused = further
        else:
            refused = None
    return together(found)


def _written(container: Any, key: str) -> Any:
    node = container
    for part in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def _taken_out(container: dict[str, Any], key: str) -> bool:
    *parents, last = key.split(".")
    node: Any = container
    for part in parents:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        return False
    del node[last]
    return True
