"""Where each value of a composed experiment comes from.

A value is set by the last of these that mentions its key: the schema's default, the file of the
option that its config group chose, the files that the experiment builds on, the experiment's own
file, an override. A file's claim is believed only where it states the composed value: a defaults
list may put ``_self_`` anywhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf

from mtrl_cli.config import places
from mtrl_cli.config.compose import Composed
from mtrl_cli.config.secrets import masked

Kind = Literal["override", "file", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of an experiment, its value with secrets masked, and what set it."""

    key: str
    value: Any
    kind: Kind
    where: str
    """The override as typed, or the file; empty for a default."""


def settings(composed: Composed) -> list[Setting]:
    """Every key of ``composed``, in the schema's order."""
    shown = dict(_values(masked(composed.container)))
    written = dict(_values(composed.container))
    sources = list(_sources(composed))
    return [_setting(key, shown[key], written[key], sources, composed) for key in shown]


def _setting(
    key: str,
    shown: Any,
    written: Any,
    sources: list[tuple[Path, Mapping[str, Any]]],
    composed: Composed,
) -> Setting:
    for override in reversed(composed.overrides):
        if override.sets(key):
            return Setting(key, shown, "override", override.shown)
    for file, values in sources:
        if key in values and values[key] == written:
            return Setting(key, shown, "file", places.named(file))
    return Setting(key, shown, "default", "")


def _sources(composed: Composed) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The files, the ones that win first, each with what it says of the experiment's keys."""
    yield from ((file, dict(_values(_load(file)))) for file in _chain(composed.file, composed.dirs))
    for group, option in composed.choices.items():
        if file := places.find(composed.dirs, f"{group}/{option}"):
            yield file, dict(_values({group: _load(file)}))


def _chain(file: Path, dirs: tuple[Path, ...]) -> Iterator[Path]:
    """An experiment's file, and the ones that it builds on, the nearest first."""
    seen: set[Path] = set()
    waiting = [file]
    while waiting:
        if (current := waiting.pop(0)) in seen:
            continue
        seen.add(current)
        yield current
        names = _load(current).get("defaults") or []
        found = (places.find(dirs, name) for name in names if isinstance(name, str))
        waiting += [path for path in found if path is not None]


def _load(file: Path) -> dict[str, Any]:
    node = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    return {str(key): value for key, value in node.items()} if isinstance(node, dict) else {}


def _values(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key; a list, and a mapping without keys, is one value."""
    for key, value in node.items():
        dotted = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from _values(value, dotted)
        elif dotted != "defaults":
            yield dotted, value
