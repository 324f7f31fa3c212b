"""``mtrl config show`` and ``mtrl config list``: what is composed, and what could be."""

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtrl_cli.cli.failures import Teller
from mtrl_cli.config.files import places
from mtrl_cli.display.terminal import Screen, columns
from mtrl_cli.display.text import harmless, table
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.files import redacted

_SHORTEST = 16
"""Characters that a value has on a terminal, however narrow; elsewhere it is never cut."""


def show_config(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    teller: Teller,
    *,
    as_json: bool,
    as_yaml: bool,
) -> int:
    """Print the composed experiment with the origin of every value; the exit code. Sections and
    keys among ``overrides`` choose what is shown.

    Raises:
        UsageError: the experiment is wrong, or YAML of a part of it is asked for.
    """
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.keys import known
    from mtrl_cli.config.origins import settings

    parts = [one for one in overrides if "=" not in one and known(one)]
    if parts and as_yaml:
        raise UsageError(f"--yaml prints a whole experiment: leave out {' '.join(parts)}")
    composed = compose(None, [one for one in overrides if one not in parts], config_dirs)
    teller.concerns(composed)
    screen, found = Screen(sys.stdout), settings(composed)
    if parts:
        found = [one for one in found if _within(one.key, parts)]
    if as_yaml:
        screen.write(composed.redact(composed.yaml))
        screen.flush()
    elif as_json:
        facts = {
            "file": places.shown(composed.file),
            "options": dict(composed.choices),
            "overrides": [override.shown for override in composed.overrides],
            "values": {
                one.key: {
                    "value": one.value,
                    "origin": one.origin.kind,
                    "where": one.origin.where or None,
                    "line": one.origin.line,
                }
                for one in found
            },
        }
        screen.line(json.dumps(redacted(facts, composed.redact), indent=2))
    else:
        rows = [(one.key, _text(one.value), one.origin.told) for one in found]
        room = _room_for_values(rows)
        cut = [(key, _cut(value, room), origin) for key, value, origin in rows]
        for line in table([("key", "value", "from"), *cut]):
            screen.line(harmless(composed.redact(line)))
    return 0


def list_config(config_dirs: Sequence[Path], *, as_json: bool) -> int:
    """Print what can be composed; the exit code."""
    dirs = places.search_dirs(config_dirs)
    named = {name: places.find(dirs, name) for name in places.experiments(dirs)}
    files = {name: file for name, file in named.items() if file}
    told = {name: _first_comment(file) for name, file in files.items()}
    groups = places.groups(dirs)
    screen = Screen(sys.stdout)
    if as_json:
        facts: dict[str, Any] = {
            "experiments": {
                name: {"file": places.shown(file), "about": told[name]}
                for name, file in files.items()
            },
            "groups": groups,
        }
        screen.line(json.dumps(facts, indent=2))
        return 0
    screen.line("Experiments (conf=NAME):")
    _print(screen, list(told.items()))
    screen.line()
    screen.line("Config groups (GROUP=OPTION):")
    _print(screen, [(group, ", ".join(options)) for group, options in groups.items()])
    return 0


def _within(key: str, parts: Sequence[str]) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in parts)


def _print(screen: Screen, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns; on a terminal the second one is wrapped within itself."""
    rows = rows or [("none", "")]
    width, indent = columns(), 4 + max(len(name) for name, _ in rows)
    for name, text in rows:
        text = harmless(text)
        room = max(width - indent, _SHORTEST) if width else max(len(text), 1)
        first, *more = textwrap.wrap(text, room, break_long_words=False) or [""]
        screen.line(f"  {harmless(name):<{indent - 4}}  {first}".rstrip())
        for line in more:
            screen.line(" " * indent + line)


def _first_comment(file: Path) -> str:
    """The first sentence of what a file says of itself in its first line."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline().strip()
    return first.lstrip("# ").partition(". ")[0].rstrip(".:") if first.startswith("#") else ""


def _text(value: Any) -> str:
    """A value as an override would write it."""
    if value is None or isinstance(value, bool):
        told = json.dumps(value)
    elif value == "???":
        told = "??? (must be set)"
    elif isinstance(value, list | dict):
        told = json.dumps(value) if value else str(value)
    else:
        told = str(value)
    return told


def _room_for_values(rows: Sequence[tuple[str, str, str]]) -> int | None:
    """What the other two columns leave of a terminal's width; None where there is no terminal."""
    width = columns()
    if width is None:
        return None
    others = sum(max(map(len, column)) for column in (*zip(*rows, strict=True),)[::2])
    return max(width - others - 4, _SHORTEST)


def _cut(text: str, room: int | None) -> str:
    return text if room is None or len(text) <= room else text[: room - 1] + "…"
