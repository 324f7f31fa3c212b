"""The table of all keys in docs/configuration.md, made from the schema.

``python -m mtrl_cli.config.reference FILE`` writes it between two marks of FILE; a test checks
that the document is current. The default is the schema's, what is allowed follows from the type
and from `validate.BOUNDS`, and the meaning is the text below the field in schema.py.
"""

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from mtrl_cli.config import schema
from mtrl_cli.config.keys import choices_of
from mtrl_cli.config.rules.validate import BOUNDS

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"

_HEAD = "| key | default | allowed | meaning |\n| --- | --- | --- | --- |"


def reference() -> str:
    """The tables, as Markdown: the top-level keys, then one section for each group."""
    parts = [_table(schema.Experiment, "")]
    for item, kind in _typed_fields(schema.Experiment):
        if is_dataclass(kind):
            parts += [f"### {item.name}", _prose(inspect.cleandoc(kind.__doc__ or ""))]
            parts.append(_table(cast("type[Any]", kind), f"{item.name}."))
    return "\n\n".join(parts)


def written_into(text: str) -> str:
    """A document with the tables between its marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, rest = text[: text.index(BEGIN)], text[text.index(END) :]
    return f"{before}{BEGIN}\n{reference()}\n{rest}"


def _table(section: type[Any], prefix: str) -> str:
    return "\n".join([_HEAD, *_rows(section, prefix)])


def _rows(section: type[Any], prefix: str) -> Iterator[str]:
    meanings = _meanings(section)
    for item, kind in _typed_fields(section):
        key = prefix + item.name
        if not is_dataclass(kind):
            cells = (f"`{key}`", _default(item), _allowed(key, kind, item), meanings[item.name])
            yield f"| {' | '.join(cells)} |"
        elif prefix:  # a section of its own stands below a heading
            yield from _rows(cast("type[Any]", kind), f"{key}.")


def _typed_fields(section: type[Any]) -> Iterator[tuple[Field[Any], Any]]:
    """Each field with its type."""
    hints = typing.get_type_hints(section)
    return ((item, hints[item.name]) for item in fields(section))


def _meanings(section: type[Any]) -> dict[str, str]:
    """The text below each field."""
    (node,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _prose(text)
    return found


def _prose(text: str) -> str:
    """A docstring as a user reads it."""
    text = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
    text = re.sub(r"\bNone\b", "`null`", text)
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text).replace("|", "\\|")


def _default(item: Field[Any]) -> str:
    value = item.default if item.default_factory is MISSING else item.default_factory()
    match value:
        case "???":
            return "must be set"
        case None:
            return "`null`"
        case Enum():
            return f"`{value.name}`"
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"


def _allowed(key: str, kind: Any, item: Field[Any]) -> str:
    if words := [f"`{word}`" for word in choices_of(key) if word != "null"]:
        return ", ".join(words)
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    (one,) = (option for option in options if option is not type(None))
    or_null = len(options) > 1 and item.default is not None
    return _words(key, one) + (", or `null`" if or_null else "")


def _words(key: str, kind: Any) -> str:
    match typing.get_origin(kind) or kind:
        case t if t is list:
            (inside,) = typing.get_args(kind)
            if issubclass(inside, Enum):
                return "a list of " + ", ".join(f"`{member.name}`" for member in inside)
            return "a list of text"
        case t if t is dict:
            return "a mapping"
        case t if t is str:
            return "text"
    number = "integer" if kind is int else "number"
    return f"{number}, {BOUNDS[key].allowed}"


def main() -> None:
    """Write the tables into the document that is named."""
    file = Path(sys.argv[1])
    file.write_text(written_into(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
