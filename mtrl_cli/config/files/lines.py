"""On which line of a YAML file something stands: read again for an error, and never otherwise."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "<<"
_PLAIN = ("str", "int", "float", "bool", "null", "seq", "map", "binary", "omap", "pairs", "merge")
"""Tags of what a plain container holds."""


@dataclass(frozen=True, slots=True)
class Written:
    """A key or a list's item: dotted (``env.params``, ``sinks[0]``), its text, its line from 1."""

    key: str
    text: str
    """Empty where a mapping or a list stands."""
    line: int


def written(file: Path) -> Iterator[Written]:
    """All that a file says, from its top; nothing of a file that is no YAML."""
    try:
        node = yaml.compose(file.read_bytes(), Loader=_LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return
    if node is not None:
        yield from _below(node, "", ())


def line_of(file: Path, key: str) -> int | None:
    """The line of a key; of one inside a list that has none, that of the list."""
    lines = {one.key: one.line for one in written(file)}
    return lines.get(key, lines.get(key.partition("[")[0]))


def holds_itself(file: Path) -> int | None:
    """The line of a mapping or a list that is, by an anchor, inside itself."""
    try:
        text = file.read_bytes()
        node = yaml.compose(text, Loader=_LOADER) if b"&" in text else None
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return _looped(node, ()) if node is not None else None


def tagged(file: Path) -> tuple[str, int] | None:
    """The first tag that is written out and makes no plain value, and its line."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in yaml.scan(text, Loader=_LOADER):
        if isinstance(token, yaml.TagToken):
            mark = token.start_mark
            tag = lines[mark.line][mark.column :].split()[0]
            if tag.removeprefix("!!") not in _PLAIN:
                return tag, mark.line + 1
    return None


def _looped(node: yaml.Node, above: tuple[yaml.Node, ...]) -> int | None:
    if any(node is one for one in above):
        return int(node.start_mark.line) + 1
    if not isinstance(node, yaml.CollectionNode):
        return None
    below = (*above, node)
    inside = [part for one in node.value for part in (one if isinstance(one, tuple) else (one,))]
    return next((line for one in inside if (line := _looped(one, below)) is not None), None)


def _below(node: yaml.Node, prefix: str, above: tuple[yaml.Node, ...]) -> Iterator[Written]:
    if any(node is one for one in above):
        return
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == _MERGE:
                yield from _below(value, prefix, above)
                continue
            key = f"{prefix}.{name.value}" if prefix else str(name.value)
            yield Written(key, _text(value), name.start_mark.line + 1)
            yield from _below(value, key, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            key = f"{prefix}[{index}]"
            yield Written(key, _text(value), value.start_mark.line + 1)
            yield from _below(value, key, above)


def _text(node: yaml.Node) -> str:
    return node.value if isinstance(node, yaml.ScalarNode) else ""
