"""The runs under a folder: listed, and found by what a person types.

A run is a folder that holds a ``run.json``. Names are only compared with what the folder lists,
and symbolic links are not followed, so no name leads out of it, and no file in a run either. The
one exception is ``latest``, whose target must be such a name again.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.liveness import Silence, lives, silence

_SHOWN = 5


class NoSuchRun(MtrlError):  # noqa: N818 - what was asked for is not there
    """No run goes by that name, or more than one does."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as its folder tells it."""

    path: Path
    state: Mapping[str, Any]
    """``run.json``; empty when it cannot be read."""
    status: str
    """As recorded, but ``lost`` for a run whose process is gone, and ``unreadable``."""
    alive: bool
    """Whether its process is there. It may be for a moment after the run has ended."""

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def attempt(self) -> int:
        return int(self.state.get("attempt") or 1)

    def silence(self) -> Silence | None:
        """How its process, which is there, gives no sign of life; None where all is well. Takes
        some seconds where its last sign is old."""
        return silence(self.state, self.path) if self.status == "running" else None

    @property
    def held(self) -> int:
        return int(self._borrows().get("held", 0))

    @property
    def quarantined(self) -> tuple[str, ...]:
        return tuple(map(str, self._borrows().get("quarantined", ())))

    def _borrows(self) -> Mapping[str, Any]:
        borrows = self.state.get("borrows")
        return borrows if isinstance(borrows, dict) else {}


def given_up(run: RunRecord) -> str | None:
    """What `mtrl store --give-up` has made of the run, in words; None where it has not.

    Raises:
        MtrlError: the mark is damaged.
    """
    if (when := run.state.get("given_up")) is None:
        return None
    from mtrl_cli.runs.shapes import NUMBER, damaged_state, wrong  # `mtrl runs` needs none of it

    if told := wrong(when, NUMBER, "given_up"):
        raise damaged_state(run.path, told)
    day = time.strftime("%Y-%m-%d", time.localtime(when))
    return f"the snapshots of {run.id} were given up on {day} (mtrl store --give-up)"


def attempt_began(state: Mapping[str, Any]) -> float:
    """When the latest attempt of the run whose ``run.json`` is ``state`` began, in Unix seconds; 0
    where that is not known."""
    resumed = state.get("resumed")
    last = resumed[-1] if isinstance(resumed, list) and resumed else None
    found = last.get("time") if isinstance(last, dict) else None
    return float(found or state.get("created") or 0.0)


def read_run(path: Path) -> RunRecord:
    """The run in this folder, as it stands now."""
    try:
        state = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        state = None
    if not isinstance(state, dict) or not isinstance(state.get("status"), str):
        return RunRecord(path, {}, "unreadable", alive=False)
    alive = lives(state, path)
    status = state["status"]
    return RunRecord(path, state, "lost" if status == "running" and not alive else status, alive)


def list_runs(runs: Path) -> list[RunRecord]:
    """Every run under ``runs``, the newest first."""
    return [read_run(runs / name) for name in run_names(runs)]


def run_names(runs: Path) -> list[str]:
    """The ids of the runs under ``runs``, the newest first; nothing of a run is read."""
    return sorted(_names(runs), reverse=True)


def find_run(runs: Path, asked: str) -> RunRecord:
    """The run that ``asked`` names: its id, its tail, a unique prefix, ``last``, or its folder,
    wherever that is: a path with a ``/``.

    Raises:
        NoSuchRun: with what there is.
    """
    if "/" in asked and (Path(asked) / "run.json").is_file():
        return read_run(without_links(Path(asked)))
    names = run_names(runs)
    if asked == "last":
        return read_run(without_links(runs / _last(runs, names)))
    ways: Sequence[Callable[[str], bool]] = (
        lambda name: name == asked,
        # Before a prefix: a tail that is printed for a run must not come to mean others, too.
        lambda name: name.rpartition("-")[2] == asked,
        lambda name: name.startswith(asked),
    )
    matches = ([name for name in names if asked and goes_by(name)] for goes_by in ways)
    found = next(filter(None, matches), [])
    if len(found) == 1:
        return read_run(without_links(runs / found[0]))
    if found:
        raise NoSuchRun(
            f"{asked!r} names {len(found)} runs in {runs}: {_listed(found)}; write more of the id"
        )
    if not names:
        raise NoSuchRun(f"no run {asked!r}: there are no runs in {runs} (see --runs-dir)")
    raise NoSuchRun(f"no run {asked!r} in {runs} (see --runs-dir); there are: {_listed(names)}")


def newest_trained(runs: Path) -> RunRecord | None:
    """The newest run that trains: what ``last`` means where no other run will do."""
    every = (read_run(runs / name) for name in run_names(runs))
    run = next((run for run in every if run.state.get("kind") == "train"), None)
    if run is not None:
        without_links(run.path)
    return run


def find_trained(runs: Path, asked: str) -> RunRecord:
    """`find_run`, but ``last`` is the newest run that trains, where there is one.

    Raises:
        NoSuchRun: none, or several.
    """
    newest = newest_trained(runs) if asked == "last" else None
    return newest or find_run(runs, asked)


def without_links(path: Path) -> Path:
    """A run's folder in which every file is its own: mtrl makes no links in one, and a folder that
    came from somewhere else must not lead a reader, or a writer, out of it.

    Raises:
        MtrlError: there is a symbolic link.
    """
    for folder in (path, path / "control", path / "trajectories"):
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue  # what needs it says so
        for entry in entries:
            if entry.is_symlink():
                raise MtrlError(f"{entry.path} is a symbolic link; mtrl follows none: remove it")
    return path


def run_at(asked: str, told: str, *, last: bool = False) -> tuple[str, int | None]:
    """The run and the step that RUN or RUN@STEP names; the step is None where none is written.

    Args:
        told: the option or the setting with its value, for the message.
        last: RUN@last may be written too, and is RUN.

    Raises:
        UsageError: what follows the @ is no step.
    """
    name, at, step = asked.partition("@")
    if not at or (last and step == "last"):
        return name, None
    if not (step.isascii() and step.isdecimal()):
        also = " or @last" if last else ""
        raise UsageError(f"{told}: write RUN@STEP, such as {name or 'RUN'}@12{also}")
    return name, int(step)


def _last(runs: Path, names: list[str]) -> str:
    try:
        target = str((runs / "latest").readlink())
    except OSError:
        target = ""
    if target in names:
        return target
    if not names:
        raise NoSuchRun(f"there are no runs in {runs} (see --runs-dir)")
    return names[0]


def _names(runs: Path) -> Iterator[str]:
    try:
        entries = list(runs.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        record = entry / "run.json"
        if not (entry.is_symlink() or record.is_symlink()) and record.is_file():
            yield entry.name


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
