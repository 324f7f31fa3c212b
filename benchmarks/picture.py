"""The picture of the READMEs: what a terminal shows of a run of `mtrl train conf=blackjack`.

    python -m benchmarks.picture record --step 88
    python -m benchmarks.picture draw

`record` starts the command as a user would, copies the moment that it tells to `mtrl watch` once a
step is committed, and writes it down with the events that the run's files tell. `draw` has the
display's own code draw two moments of that record, the step and the end, and exports them.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from mtrl_cli.cli.running.live_file import NAME
from mtrl_cli.display import lines
from mtrl_cli.display.columns import step_lines
from mtrl_cli.display.panels import UNICODE, group_table, head
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.snapshot import restore, to_record
from mtrl_cli.display.state import RunState
from mtrl_cli.display.summary import summary
from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.registry import find_run
from mtrl_cli.training.events import (
    Comparison,
    Evaluated,
    FolderMade,
    RunFinished,
    RunStarted,
    StepFinished,
)
from mtrl_cli.training.telling.reading import story

COMMAND = "mtrl train conf=blackjack"
RECORD = Path(__file__).with_name("picture.json")
PICTURE = Path(__file__).parent.parent / "docs" / "screen.svg"
COLUMNS = 100
ROWS = 6
"""Groups of the table."""
STEPS = 5
"""Lines of steps above each moment."""

_EVENTS = {one.__name__: one for one in (FolderMade, RunStarted, Evaluated, StepFinished)}
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas,
 "DejaVu Sans Mono", monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As rich's own, but with the reader's fonts: a picture fetches nothing."""


def recorded(runs: Path, step: int) -> dict[str, Any]:
    """The record of the run that is going on in ``runs``: waits for a moment after ``step`` in
    which groups have played some members, and for the end."""
    while not (latest := runs / "latest" / "commits.jsonl").is_file():
        time.sleep(1)
    folder = runs / latest.resolve().parent.name
    while (last := read_history(folder / "commits.jsonl").last) is None or last.step < step:
        time.sleep(0.3)
    moment: dict[str, Any] = {"groups": ()}
    while sum(bool(one["members"]) for one in moment["groups"]) < ROWS:
        time.sleep(0.3)
        moment = json.loads((folder / NAME).read_text(encoding="utf-8"))
        when = (folder / NAME).stat().st_mtime
    while find_run(runs, folder.name).status == "running":
        time.sleep(1)
    return record(folder, moment, when)


def record(folder: Path, moment: Mapping[str, Any], when: float) -> dict[str, Any]:
    """A run that is over, and one moment of it."""
    told = story(find_run(folder.parent, folder.name))
    events = [[at, type(event).__name__, _kept(asdict(event))] for at, event in told]  # type: ignore[call-overload]
    return {"when": when, "moment": moment, "events": events}


def _kept(event: dict[str, Any]) -> dict[str, Any]:
    """An event without the figures of a step that no screen shows."""
    if "metrics" in event:
        shown = {
            name: float(f"{value:.6g}")
            for name, value in event["metrics"].items()
            if "/" not in name or name.startswith("skipped/")
        }
        return event | {"metrics": shown}
    return event


def events(document: Mapping[str, Any]) -> Iterator[tuple[float, object]]:
    """The events of a record, as the run told them, with their Unix times."""
    for when, name, values in document["events"]:
        yield when, _event(name, values)


def _event(name: str, values: Mapping[str, Any]) -> object:
    if name != "RunFinished":
        versus = values.get("versus")
        return _EVENTS[name](**values | ({"versus": Comparison(**versus)} if versus else {}))
    held = ("before", "after", "evaluated")
    inner = {one: _event("Evaluated", values[one]) for one in held if values[one]}
    return RunFinished(**values | inner)  # type: ignore[arg-type]


def drawn(document: Mapping[str, Any]) -> str:
    """The picture: the beginning, the step of the moment with the table of groups, the end."""
    console = Console(
        file=StringIO(), record=True, force_terminal=True, width=COLUMNS, highlight=False
    )
    told = list(events(document))
    state = RunState(DisplayPlan("train blackjack"), told[0][0])
    console.print(Text.assemble(("$ ", "green"), (COMMAND, "bold")))
    for when, event in told:
        if when > document["when"]:
            break
        state.apply(event, when)
        if isinstance(event, FolderMade):
            console.print(Text(lines.beginning_line(event)))
        elif isinstance(event, Evaluated):
            console.print(Text(lines.evaluated_line(event)))
    _restore(state, document)
    moment = state.step
    _steps(console, told, document, range(moment - STEPS + 1, moment + 1))
    console.print(head(state, document["when"], COLUMNS, UNICODE, str))
    console.print()
    console.print(group_table(state, document["when"], COLUMNS, ROWS, UNICODE, str))
    _end(console, told, document)
    return console.export_svg(
        title=COMMAND, theme=SVG_EXPORT_THEME, code_format=_FORMAT, unique_id="mtrl"
    )


def _restore(state: RunState, document: Mapping[str, Any]) -> None:
    """Put the moment into ``state``, which keeps what an older record does not tell."""
    moment, own = document["moment"], to_record(state, document["when"])
    plan = {**own["plan"], **moment["plan"]}
    restore(state, {**own, **moment, "plan": plan}, document["when"])


def _steps(
    console: Console, told: Sequence[tuple[float, object]], document: Mapping[str, Any], of: range
) -> None:
    """The lines of some steps, below the sign that others are left out."""
    state = RunState(DisplayPlan("train blackjack"), told[0][0])
    _restore(state, document)
    console.print(Text("⋮", style="dim"))
    for when, event in told:
        state.apply(event, when)
        if isinstance(event, StepFinished) and event.step in of:
            for line in step_lines(state, when, COLUMNS):
                console.print(Text(line), soft_wrap=True)


def _end(
    console: Console, told: Sequence[tuple[float, object]], document: Mapping[str, Any]
) -> None:
    state = RunState(DisplayPlan("train blackjack"), told[0][0])
    for when, event in told:
        state.apply(event, when)
    _steps(console, told, document, range(state.step - 1, state.step + 1))
    for line in summary(state, told[-1][0], "mtrl rollout conf=blackjack", width=COLUMNS):
        console.print(Text(line), soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record")
    recording.add_argument("--step", type=int, default=88, help="the step of the first moment")
    commands.add_parser("draw")
    arguments = parser.parse_args()

    if arguments.command == "draw":
        document = json.loads(RECORD.read_text(encoding="utf-8"))
        PICTURE.write_text(drawn(document), encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        process = subprocess.Popen(
            [sys.executable, "-m", "mtrl_cli", *COMMAND.split()[1:]],
            env={**os.environ, "MTRL_HOME": f"{folder}/home"},
        )
        document = recorded(Path("runs"), arguments.step)
        process.wait()
    RECORD.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


if __name__ == "__main__":
    main()
