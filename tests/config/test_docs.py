"""docs/configuration.md lists every key with its default, as the program that writes it would now.

``python -m mtrl_cli.config.reference docs/configuration.md`` writes the tables again.
"""

import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mtrl_cli.config.reference import written_into
from mtrl_cli.config.schema import Experiment

DOCS = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
ROW = re.compile(r"^\| `([a-z_.0-9]+)` \| `?([^|`]*)`? \| [^|]+ \| [^|]+ \|$", re.MULTILINE)


def schema_defaults(section: type[Any] = Experiment, prefix: str = "") -> Iterator[tuple[str, str]]:
    for item in fields(section):
        kind = typing.get_type_hints(section)[item.name]
        if is_dataclass(kind):
            yield from schema_defaults(typing.cast("type[Any]", kind), f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, shown(item)


def shown(item: Field[Any]) -> str:
    value = item.default if item.default_factory is MISSING else item.default_factory()
    match value:
        case "???":
            return "must be set"
        case None:
            return "null"
        case Enum():
            return value.name
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def test_every_key_is_documented_with_its_default() -> None:
    assert dict(ROW.findall(DOCS.read_text())) == dict(schema_defaults())


def test_the_tables_are_current() -> None:
    text = DOCS.read_text()
    assert written_into(text) == text
    assert "| `train.lora_rank` | `32` | integer, from 1 to 4,096, or `null` |" in text
