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


def type_of(key: str) -> Any:
    """The type of a key's value; None where the schema has no such key."""
    section: Any = Experiment
    *parents, last = key.split(".")
    for part in parents:
        section = typing.get_type_hints(section).get(part)
        if not is_dataclass(section):
            return None
    return typing.get_type_hints(section).get(last)


def options_of(kind: Any) -> tuple[Any, ...]:
    """The types of which a value has one."""
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def choices_of(key: str) -> list[str]:
    """The words that a key chooses among, as the user types them; none where it is not a choice."""
    words: list[str] = []
    for option in options_of(type_of(key)):
        if option is bool:
            words += ["true", "false"]
        elif option is type(None):
            words.append("null")
        elif isinstance(option, type) and issubclass(option, Enum):
            words += [member.name for member in option]
    return words


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` was probably meant to be: one spelt alike, or one whose words
    begin with its letters (``lr``)."""
    candidates = list(candidates)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    short = (one for one in candidates if len(word) > 1 and _initials(one) == word)
    return close[0] if close else next(short, None)


def _initials(name: str) -> str:
    return "".join(part[0] for part in name.split("_") if part)


def keys_named(name: str) -> list[str]:
    """The keys whose last word is ``name``."""
    return [key for key, kind in schema_keys().items() if kind != "section" and _last(key) == name]


def key_meant(key: str, as_written: str = "") -> str | None:
    """What to write instead of a ``key`` that the schema does not have, as a hint.

    A key of another section is a guess only where ``key`` names no section, or a wrong one; else
    the keys of that very name are told as what they are. ``as_written`` follows a guessed key.
    """
    keys = schema_keys()
    section, _, name = key.rpartition(".")
    alike = keys_named(name)
    known_section = keys.get(section) == "section"
    if alike and (known_section or (not section and len(alike) > 1)):
        return f"of that name there {'is' if len(alike) == 1 else 'are'} {', '.join(alike)}"
    if known_section:  # what is right must not count for what is wrong
        beside = [_last(one) for one in keys if one.rpartition(".")[0] == section]
        found = nearest(name, beside)
        return f"did you mean {section}.{found}{as_written}?" if found else None
    near = alike[0] if alike and not section else nearest(key, keys) or _by_last_word(name)
    return f"did you mean {near}{as_written}?" if near else None


def _by_last_word(name: str) -> str | None:
    """The key whose last word is nearest: of two alike, that of the training."""
    by_word: dict[str, str] = {}
    for key in sorted(schema_keys(), key=lambda key: not key.startswith("train.")):
        by_word.setdefault(_last(key), key)
    found = nearest(name, by_word)
    return by_word[found] if found else None


def _last(key: str) -> str:
    return key.rpartition(".")[2]


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
    return any(typing.get_origin(option) is dict for option in options_of(kind))
