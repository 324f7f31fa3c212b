"""Every value of a composed experiment, and what set it (`config.sources`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtrl_cli.config.compose import Composed
from mtrl_cli.config.secrets import masked
from mtrl_cli.config.sources import Origin


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of an experiment, its value with secrets masked, and what set it."""

    key: str
    value: Any
    origin: Origin


def settings(composed: Composed) -> list[Setting]:
    """Every key of ``composed``, in the schema's order."""
    shown = dict(_values(masked(composed.container)))
    written = dict(_values(composed.container))
    sources = composed.sources
    return [Setting(key, shown[key], sources.origin(key, written[key])) for key in shown]


def _values(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key; a list, and a mapping without keys, is one value."""
    for key, value in node.items():
        dotted = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from _values(value, dotted)
        elif dotted != "defaults":
            yield dotted, value
