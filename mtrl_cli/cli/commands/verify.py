"""``mtrl verify``: check a run from its files alone, and say what is wrong where."""

import json
import sys
from pathlib import Path

from mtrl_cli.cli.failures import Teller
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless
from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.registry import NoSuchRun, RunRecord, find_run
from mtrl_cli.runs.verify.check import verify
from mtrl_cli.runs.verify.report import Report
from mtrl_cli.training.telling.retelling import RunRetelling, retelling_of

CLEAN, FOUND, NO_SUCH_RUN = 0, 1, 3


def verify_run(asked: str, runs: Path, teller: Teller, *, as_json: bool) -> int:
    """Verify the run that ``asked`` names; the exit code."""
    try:
        path = find_run(runs, asked).path
    except NoSuchRun as error:
        teller.tell(error)
        return NO_SUCH_RUN
    retelling, missing = _retelling(path)
    run, report = verify(path, retelling)
    if missing is not None:
        report.notes.append(f"tokens were not compared with the text: {missing}")
    screen = Screen(sys.stdout)
    if as_json:
        screen.line(_object(run, report))
    else:
        _print(screen, run, report)
    return FOUND if report.findings else CLEAN


def _retelling(path: Path) -> tuple[RunRetelling | None, str | None]:
    """The run's tokenizer, template and task, or why they are not to be had."""
    try:
        return retelling_of(path), None
    except MtrlError as error:
        return None, " ".join(str(error).split())


def _object(run: RunRecord, report: Report) -> str:
    facts = {
        "run_id": run.id,
        "status": run.status,
        "checked": dict(report.checked),
        "notes": report.notes,
        "findings": [
            {"file": found.file, "line": found.line, "what": found.what}
            for found in report.findings
        ],
    }
    return json.dumps(facts, indent=2)


def _print(screen: Screen, run: RunRecord, report: Report) -> None:
    counts = ", ".join(f"{number} {what}" for what, number in report.checked.items())
    screen.prose(harmless(f"{run.id} ({run.status}): {counts}"))
    for note in report.notes:
        screen.prose(harmless(f"note: {note}"))
    for found in report.findings:
        screen.prose(harmless(str(found)))
    number = len(report.findings)
    screen.line("nothing is wrong" if not number else f"findings: {number}")
