"""docs/troubleshooting.md quotes messages that the source really holds."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`.+`) \| [^|]+ \|$", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
HOLE = "…"


def quoted() -> list[str]:
    """The messages: what is quoted in the first column of the tables below ``message``."""
    below = TEXT[TEXT.index("## Configuration") :]
    return [message for row in ROW.findall(below) for message in QUOTED.findall(row)]


def texts() -> Iterator[str]:
    """Every text in the source, with a hole for each value that is filled in."""
    for file in (ROOT / "mtrl_cli").rglob("*.py"):
        if "testing" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else HOLE for part in node.values
                )
                yield "".join(map(str, parts))


SOURCE = "\n".join(dict.fromkeys(text.replace("\n", " ") for text in texts()))


def test_there_are_messages() -> None:
    assert len(quoted()) > 80


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_exists(message: str) -> None:
    """Each piece between two holes stands in the source, all in one text and in this order."""
    pieces = [re.escape(piece.strip()) for piece in message.split(HOLE) if piece.strip(" ;:.,()")]
    assert pieces, message
    assert re.search(".*?".join(pieces), SOURCE), message
