"""What a key takes, in words, for the message about a value that it does not take."""

import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.keys import options_of, type_of
from mtrl_cli.config.secrets import is_secret, masked

_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
}

_SHOWN = 60
"""Characters of a value in a message."""

_LONGEST = 200
"""Characters of a reason."""


def wrong_value(key: str, value: Any, at: str, reason: str = "cannot be this") -> ConfigError:
    """``value`` is not of the key's type; ``reason`` is told where there are no words for that."""
    if is_secret(key):
        return ConfigError(f"{key}: not a value of this key's type", at=at)
    interpolated = isinstance(value, str) and "${" in value
    told = None if interpolated else wrong_type(key, masked(value))
    return ConfigError(told or f"{key}: {_shortened(reason)}", at=at)


def _shortened(text: str) -> str:
    """Without the middle, where OmegaConf quotes a whole section."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def wrong_type(key: str, value: Any) -> str | None:
    """``train.steps is a whole number, not 'ten'``; None where the key's type has no words.

    ``key`` may be an item of a list: ``sinks[0]``.
    """
    name, item, _ = key.partition("[")
    kinds = options_of(type_of(name))
    words = [word for kind in (_items(kinds) if item else kinds) for word in _words(kind)]
    if not words or None in words:
        return None
    *most, last = filter(None, words)
    takes = f"{', '.join(most)} or {last}" if most else last
    return f"{key} is {takes}, not {in_words(value)}"


def in_words(value: Any) -> str:
    """A value as YAML writes it, shortened."""
    named = value is None or isinstance(value, bool)
    told = {None: "null", True: "true", False: "false"}[value] if named else repr(value)
    return f"{told:.{_SHOWN}}"


def _items(kinds: tuple[Any, ...]) -> Iterator[Any]:
    for kind in kinds:
        if typing.get_origin(kind) in (list, tuple):
            yield from typing.get_args(kind)[:1]


def _words(kind: Any) -> list[str | None]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.name for member in kind]
    if typing.get_origin(kind) in (list, tuple):
        return ["a list ([A, B])"]
    if typing.get_origin(kind) is dict:
        return ["a mapping ({KEY: VALUE})"]
    return [_NAMES.get(kind)]
