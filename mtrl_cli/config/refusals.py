"""What the schema refuses, in words: the key, what it takes, and what set it.

OmegaConf ends at the first key that is wrong. `all_refused` takes that one out and merges again,
so that a user who made two mistakes reads of both.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from mtrl_cli.config.errors import MOST, ConfigError, together
from mtrl_cli.config.keys import key_meant, schema_keys
from mtrl_cli.config.sources import value_at
from mtrl_cli.config.wording import wrong_value

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
    if isinstance(error, ConfigKeyError):
        return _unknown_key(key, container, set_by)
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return wrong_value(key, value, set_by(key, value), first)


def _unknown_key(key: str, container: dict[str, Any], set_by: SetBy) -> ConfigError:
    hint = key_meant(key) or "see docs/configuration.md for all keys"
    return ConfigError(f"unknown key {key!r}", at=set_by(key, value_at(container, key)), hint=hint)


def all_refused(
    error: OmegaConfBaseException,
    container: dict[str, Any],
    set_by: SetBy,
    merge: Callable[[dict[str, Any]], Any],
) -> ConfigError:
    """All refusals of what ``merge`` refused with ``error``. Takes them out of ``container``.

    Unknown keys are found in one pass; of others, no more than are told are looked for.
    """
    unknown = list(_unknown(container))
    found = [_unknown_key(key, container, set_by) for key in unknown[:MOST]]
    for key in unknown:
        _taken_out(container, key)
    refused: OmegaConfBaseException | None = error
    if unknown:
        refused = _refusal(container, merge)
    left = MOST - len(found)
    while refused is not None and left > 0:
        found.append(schema_error(refused, container, set_by))
        if not _taken_out(container, str(refused.full_key or "").partition("[")[0]):
            break
        left -= 1
        refused = _refusal(container, merge)
    return together(found, beyond=max(len(unknown) - MOST, 0), more=refused is not None)


def _refusal(
    container: dict[str, Any], merge: Callable[[dict[str, Any]], Any]
) -> OmegaConfBaseException | None:
    try:
        merge(container)
    except OmegaConfBaseException as error:
        return error
    return None


def _unknown(node: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Keys that the schema does not have, outermost first."""
    for name, value in node.items():
        key = f"{above}{name}"
        if (kind := schema_keys().get(key)) is None:
            yield key
        elif kind == "section" and isinstance(value, Mapping):
            yield from _unknown(value, f"{key}.")


def _taken_out(container: dict[str, Any], key: str) -> bool:
    *parents, last = key.split(".")
    node: Any = container
    for part in parents:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        return False
    del node[last]
    return True
