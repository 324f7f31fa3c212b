"""What set a key of an experiment: an override, or a file and the line in it.

A value is set by the last of these that mentions its key: the schema's default, the file of the
option that its config group chose, the files that the experiment builds on, the experiment's own
file, an override. A file that states the composed value is believed before one that states
another: a defaults list may put ``_self_`` anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.files import places
from mtrl_cli.config.files.defaults import Entry, entries
from mtrl_cli.config.files.lines import written
from mtrl_cli.config.files.reading import experiment, read
from mtrl_cli.config.files.shapes import shape_errors
from mtrl_cli.config.overrides import CheckedOverride

Kind = Literal["override", "file", "default"]

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Origin:
    """What set one key."""

    kind: Kind
    override: str = ""
    """As it may be shown."""
    file: Path | None = None
    line: int | None = None
    """In the file."""

    @property
    def where(self) -> str:
        """The override, or the file; empty for a default."""
        return self.override if self.file is None else places.named(self.file)

    @property
    def told(self) -> str:
        """The override, ``FILE:LINE``, or ``default``."""
        told = self.override if self.file is None else places.named(self.file, self.line)
        return told or self.kind


@dataclass(frozen=True)
class Sources:
    """All that an experiment is composed of."""

    file: Path
    dirs: tuple[Path, ...]
    choices: Mapping[str, str]
    overrides: tuple[CheckedOverride, ...]

    def origin(self, key: str, value: Any) -> Origin:
        """What set ``key`` to ``value``. An item of a list (``sinks[0]``) is set with the list."""
        name = key.partition("[")[0]
        for override in reversed(self.overrides):
            if override.sets(name):
                return Origin("override", override.shown)
        stated = [one for one in self._files if one.states(key)]
        # The winning one states the value, except where a path in it was made absolute.
        stated.sort(key=lambda one: one.value_of(key) != value)
        if not stated:
            return Origin("default")
        source = stated[0]
        return Origin("file", file=source.file, line=source.line_of(key))

    def set_by(self, key: str, value: Any) -> str:
        """The override, or ``FILE:LINE``; of a key that nothing sets, the experiment's file."""
        origin = self.origin(key, value)
        return places.shown(self.file) if origin.kind == "default" else origin.told

    @cached_property
    def _files(self) -> "tuple[Source, ...]":
        """The ones that win first."""
        own = chain(self.file, self.dirs)
        options = [
            _load(file, group, group)
            for group, option in self.choices.items()
            if (file := places.find(self.dirs, f"{group}/{option}"))
        ]
        return (*own, *options)


@dataclass(frozen=True)
class Source:
    """A file, and the section of an experiment that its keys are in."""

    file: Path
    group: str
    values: Mapping[str, Any]
    defaults: Sequence[Entry]

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        return {one.key: one.line for one in written(self.file)}

    def states(self, key: str) -> bool:
        return self.value_of(key) is not _ABSENT

    def value_of(self, key: str) -> Any:
        """The value of ``key`` in it; `_ABSENT` where it does not state one."""
        if key == self.group and not self.values:  # what it holds is no mapping
            return None
        if self.group and not key.startswith(f"{self.group}."):
            return _ABSENT
        inside = self._inside(key)
        if inside in self.values:  # also a key with a dot in it, which is refused
            return self.values[inside]
        return value_at(self.values, inside, _ABSENT)

    def line_of(self, key: str) -> int | None:
        return self._lines.get(self._inside(key))

    def wrong_shapes(self) -> list[ConfigError]:
        """What has another shape in it than its key takes."""

        def where(key: str) -> str:
            inside = self._inside(key)
            while inside not in self._lines and "." in inside:
                inside = inside.rpartition(".")[0]
            return places.named(self.file, self._lines.get(inside))

        values = {
            f"{self.group}.{key}" if self.group else key: self.values[key] for key in self.values
        }
        return shape_errors(values, where)

    def _inside(self, key: str) -> str:
        return key.removeprefix(f"{self.group}.") if self.group else key


def value_at(node: Any, key: str, otherwise: Any = None) -> Any:
    """The value of a dotted key, which may end in an item (``sinks[0]``), in plain containers."""
    for part in key.replace("[", ".").replace("]", "").split("."):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return otherwise
    return node


def sources_of(
    file: Path, dirs: tuple[Path, ...], overrides: tuple[CheckedOverride, ...]
) -> "tuple[Source, ...]":
    """The files that could not be merged: the experiment's, what it builds on, and the options
    that their defaults lists and ``overrides`` choose.

    Raises:
        ConfigError: one of them cannot be read.
    """
    chosen = dict(_chosen(file, dirs))
    chosen |= {one.key: one.hydra.partition("=")[2] for one in overrides if one.group}
    return Sources(file, dirs, chosen, overrides)._files


def _chosen(file: Path, dirs: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """The options that defaults lists choose, the strongest last."""
    for source in reversed(list(chain(file, dirs))):
        for entry in source.defaults:
            if entry.group:
                yield entry.group, entry.name


def chain(file: Path, dirs: tuple[Path, ...]) -> "Iterator[Source]":
    """An experiment's file, and the ones that it builds on, the nearest first.

    Raises:
        ConfigError: one of them cannot be read.
    """
    seen: set[Path] = set()
    waiting = [(file, "", "")]
    while waiting:
        current, section, folder = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        values = experiment(current)
        source = Source(current, section, values, entries(values, current, folder))
        yield source
        for entry in source.defaults:
            if entry.is_self or entry.group:
                continue
            if found := places.find(dirs, entry.path):
                waiting.append((found, entry.section, entry.path.rpartition("/")[0]))


def _load(file: Path, section: str, folder: str) -> Source:
    """A file whose keys are in ``section``; names in it are looked for in ``folder``."""
    node = read(file)
    values = {str(key): value for key, value in node.items()} if isinstance(node, dict) else {}
    return Source(file, section, values, entries(values, file, folder))
