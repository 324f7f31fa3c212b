"""On which line of a YAML file something stands: read again for an error, and never otherwise."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "<<"


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
        yield from _below(node, "")


def _below(node: yaml.Node, prefix: str) -> Iterator[Written]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == _MERGE:
                yield from _below(value, prefix)
                continue
            key = f"{prefix}.{name.value}" if prefix else str(name.value)
            yield Written(key, _text(value), name.start_mark.line + 1)
            yield from _below(value, key)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            key = f"{prefix}[{index}]"
            yield Written(key, _text(value), value.start_mark.line + 1)
            yield from _below(value, key)


def _text(node: yaml.Node) -> str:
    return node.value if isinstance(node, yaml.ScalarNode) else ""
