"""``mtrl report``: runs as one HTML file."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless, run_tail
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.registry import RunRecord, find_run

_LONGEST = 60
"""Characters of the runs' names in the name of a file."""


def report_runs(asked: Sequence[str], runs: Path, out: Path | None, *, show: bool) -> int:
    """Write the report of the runs that ``asked`` names; the exit code.

    Without ``out`` it is ``report.html`` in the run's folder; of several runs it has a name of its
    own, `_compared`, in the folder of the first one, whose own report it leaves alone.

    Raises:
        NoSuchRun: one of them is not there.
        UsageError: the file cannot be written.
        MtrlError: a run's folder is so damaged that there is nothing to show. Of several, such
            ones are told and left out, as long as one can be read.
    """
    from mtrl_cli.report.episodes import chosen_episodes
    from mtrl_cli.report.facts import RunFacts, read_facts
    from mtrl_cli.report.page import lacking, page

    named = (find_run(runs, name) for name in asked)
    found = list({record.id: record for record in named}.values())
    read: list[RunFacts] = []
    damaged: list[MtrlError] = []
    for record in found:
        try:
            read.append(read_facts(record))
        except MtrlError as error:
            damaged.append(error)
    if not read:
        raise damaged[0]
    path = out or read[0].record.path / ("report.html" if len(found) == 1 else _compared(found))
    chosen = [chosen_episodes(facts, 1 / len(read)) for facts in read]
    write_private(path, page(read, chosen))
    lacks = [line for facts, one in zip(read, chosen, strict=True) for line in lacking(facts, one)]
    for told in (*(f"left out: {left}" for left in damaged), *lacks):
        Screen(sys.stderr).line(harmless(f"warning: {told}"))
    for facts in read:
        say_where_it_stands(facts.record)
    Screen(sys.stdout).line(harmless(str(path)))
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return 0


def _compared(runs: Sequence[RunRecord]) -> str:
    """The name of the report of several runs: the same for the same ones alone."""
    named = "-".join(run_tail(run.id) for run in runs)
    if len(named) > _LONGEST:
        digest = hashlib.sha256("\n".join(run.id for run in runs).encode()).hexdigest()
        named = f"{len(runs)}-runs-{digest[:8]}"
    return f"compare-{named}.html"


def say_where_it_stands(run: RunRecord) -> None:
    """Say that what was made of a run that goes on is of the steps that it has committed so far."""
    if run.status == "running":
        told = f"note: {run.id} goes on; this is what it has committed so far"
        Screen(sys.stderr).line(harmless(told))


def write_private(path: Path, text: str) -> None:
    """Write a file for its owner alone: what it tells comes from a folder that is private too.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}; write another path") from error
