"""Whether a command could be typed: its options exist, its overrides compose into an experiment
that is valid, its files are there. Nothing is run."""

import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from mtrl_cli.cli.app import app
from mtrl_cli.config.compose import compose
from mtrl_cli.config.keys import known
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.sweep import combinations
from mtrl_cli.errors import MtrlError
from tests.docs.pages import ROOT
from tests.docs.shell import Command

_USAGE: type[Exception] = typer.BadParameter.__mro__[1]
_WRITTEN_LATER = {"KEY=VALUE", "conf=NAME", "conf=FILE.yaml", "group.KEY=VALUE"}
"""Words that stand for what the reader writes."""
_LEFT_OUT = ("Missing parameter: run", "requires an argument.")


def problem(command: Command) -> str | None:
    """What is wrong with a command; None where nothing is."""
    judge = _PROGRAMS.get(command.program)
    if judge is None:
        return f"no test knows the program {command.program!r}"
    told = next(judge(list(command.words[1:])), None)
    return None if told and command.in_prose and told.endswith(_LEFT_OUT) else told


def _mtrl(words: list[str]) -> Iterator[str]:
    node: Any = typer.main.get_command(app)
    path = ["mtrl"]
    while (inside := getattr(node, "commands", None)) and words and words[0] in inside:
        node = inside[words[0]]
        path.append(words.pop(0))
    name = " ".join(path)
    known = {option for one in node.params for option in one.opts} | {"--help", "-h"}
    if inside or "--help" in words or words == ["…"]:
        yield from (f"{name} has no {word}" for word in words if word not in known | {"…"})
        return
    try:
        context = node.make_context(name, list(words))
    except _USAGE as error:
        yield f"{name}: {error}"
        return
    if "overrides" in context.params:
        yield from _experiment(path[1], context.params)


def _experiment(command: str, given: dict[str, Any]) -> Iterator[str]:
    overrides = [one for one in given["overrides"] or [] if one not in _WRITTEN_LATER]
    if command == "config":  # the sections that are shown
        overrides = [one for one in overrides if "=" in one or not known(one)]
    runs = [overrides]
    if given.get("multirun"):
        combined = [chosen for _, chosen in combinations(overrides)]
        runs = [combined[0], combined[-1]]
    folders = tuple(given["config_dir"] or [])
    found = (_composed(tuple(chosen), folders, training=command == "train") for chosen in runs)
    yield from (told for told in found if told is not None)


@cache
def _composed(overrides: tuple[str, ...], folders: tuple[Path, ...], training: bool) -> str | None:
    try:
        composed = compose(None, overrides, folders)
        refuse_invalid(resolve(composed, secrets=False), composed, training=training)
    except MtrlError as error:
        return f"{error} (at {getattr(error, 'at', None)})"
    return None


def _python(words: list[str]) -> Iterator[str]:
    if words[:2] == ["-m", "venv"] or words[0] == "-c":
        return
    if words[:2] == ["-m", "pip"]:
        yield from _pip(words[2:])
    elif words[:2] == ["-m", "pytest"]:
        paths = (word for word in words[2:] if "/" in word)
        yield from (f"there is no {path}" for path in paths if not (ROOT / path).exists())
    else:
        file = Path(*words[1].split(".")).with_suffix(".py") if words[0] == "-m" else Path(words[0])
        if not (ROOT / file).is_file():
            file = file.with_suffix("") / "__main__.py"
        yield from _script(ROOT / file, words[1:])


def _script(file: Path, words: list[str]) -> Iterator[str]:
    if not file.is_file():
        yield f"there is no {file.relative_to(ROOT)}"
        return
    around = file.parent.glob("*.py") if file.name == "__main__.py" else [file]
    text = "".join(one.read_text(encoding="utf-8") for one in around)
    options = (word.strip("[]") for word in words if word.lstrip("[").startswith("--"))
    yield from (f"{file.name} has no {one}" for one in options if f'"{one}"' not in text)


def _pip(words: list[str]) -> Iterator[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for named in re.findall(r"^(?:\.|mtrl-cli)\[(.+)\]$", "\n".join(words), re.MULTILINE):
        if unknown := set(named.split(",")) - set(extras["optional-dependencies"]):
            yield f"there is no extra {', '.join(sorted(unknown))}"


def _other(words: list[str]) -> Iterator[str]:
    """A program that is not ours."""
    return iter(())


_PROGRAMS: dict[str, Callable[[list[str]], Iterator[str]]] = {
    "mtrl": _mtrl,
    "python": _python,
    "pip": _pip,
    **dict.fromkeys(("export", "cd", "git", "curl", "jq", ".", "pre-commit", "tee"), _other),
}
