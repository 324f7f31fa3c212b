"""The schema's keys, and the nearest one to a mistyped key."""

import difflib
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal

from mtrl_cli.config.schema import Experiment

Kind = Literal["section", "value", "open"]
"""A dataclass of its own, one value, or a mapping that takes any key below it."""


@cache
def schema_keys() -> dict[str, Kind]:
    """Every key of an experiment, dotted."""
    return dict(_walk(Experiment, ""))


def known(key: str) -> bool:
    """Whether ``key`` is in the schema or below one of its open mappings."""
    kinds = schema_keys()
    if key in kinds:
        return True
    parents = key.split(".")[:-1]
    prefixes = (".".join(parents[: length + 1]) for length in range(len(parents)))
    return any(kinds.get(prefix) == "open" for prefix in prefixes)


def choices_of(key: str) -> list[str]:
    """The words that a key chooses among, as the user types them; none where it is not a choice."""
    section: Any = Experiment
    *parents, last = key.split(".")
    for part in parents:
        section = typing.get_type_hints(section).get(part)
        if not is_dataclass(section):
            return []
    kind = typing.get_type_hints(section).get(last)
    words: list[str] = []
    for option in typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,):
        if option is bool:
            words += ["true", "false"]
        elif option is type(None):
            words.append("null")
        elif isinstance(option, type) and issubclass(option, Enum):
            words += [member.name for member in option]
    return words


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be."""
    close = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest_key(key: str) -> str | None:
    """The schema key that ``key`` was probably meant to be, also when its section is missing."""
    keys = schema_keys()
    if found := nearest(key, keys):
        return found
    last_parts = {known_key.rpartition(".")[2]: known_key for known_key in keys}
    last = nearest(key.rpartition(".")[2], last_parts)
    return last_parts[last] if last else None


def _walk(section: type[Any], prefix: str) -> Iterator[tuple[str, Kind]]:
    hints = typing.get_type_hints(section)
    for item in fields(section):
        key, kind = prefix + item.name, hints[item.name]
        if is_dataclass(kind):
            yield key, "section"
            yield from _walk(typing.cast("type[Any]", kind), f"{key}.")
        else:
            yield key, "open" if _is_mapping(kind) else "value"


def _is_mapping(kind: Any) -> bool:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return any(typing.get_origin(option) is dict for option in options)
