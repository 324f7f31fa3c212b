"""Help uses the terminal's width up to what can be read, says the same at every width, and has no
escape codes anywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mtrl_cli.cli.app import app
from mtrl_cli.cli.help import WIDEST
from tests.cli.processes import command, environment, on_terminal


def commands(node: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    node = node or typer.main.get_command(app)
    yield path
    for name, below in getattr(node, "commands", {}).items():
        yield from commands(below, (*path, name))


def shown(path: tuple[str, ...], columns: int, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("COLUMNS", str(columns))
    node: Any = typer.main.get_command(app)
    context = node.make_context("mtrl", [], resilient_parsing=True)
    for name in path:
        node = node.commands[name]
        context = node.make_context(name, [], parent=context, resilient_parsing=True)
    text = node.get_help(context)
    assert isinstance(text, str)
    assert "\x1b" not in text
    return text


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_fits_and_loses_no_word(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, wide, huge = (shown(path, columns, monkeypatch) for columns in (80, 140, 300))
    assert widest(narrow) <= 80
    assert widest(wide) <= WIDEST
    assert wide == huge
    assert narrow.split() == wide.split()


def test_help_uses_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(("train",), 140, monkeypatch)
    assert widest(text) > 80
    line = "  -m, --multirun    Run every combination of values such as seed=1,2 one by one.\n"
    assert line in text


@pytest.mark.parametrize("variable", ["", "TERM=dumb", "FORCE_COLOR=1"])
def test_help_and_mistakes_on_a_real_terminal(tmp_path: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    environ = environment(**({name: value} if name else {}))
    code, written = on_terminal(
        command("train", "--dry-rnu"), cwd=tmp_path, environ=environ, size=(40, 140)
    )
    assert (code, "\x1b" in written) == (2, False)
    assert "Error: No such option: --dry-rnu (Possible options: --dry-run)" in written
