"""``metrics.jsonl``: one line for every step that stands, each figure finite.

The line is written before the commit: a kill in between leaves the last step of an attempt with
a line and without a commit. Lines of steps that were voided stay; lines of evaluations during
training stand beside the steps.
"""

import math
from collections.abc import Sequence

from mtrl_cli.runs.verify.commits import Commits
from mtrl_cli.runs.verify.lines import Line
from mtrl_cli.runs.verify.report import Report

FILE = "metrics.jsonl"
_STEP = "episodes"
"""A figure that the line of a step has, and that of an evaluation has not."""


def check_metrics(lines: Sequence[Line], commits: Commits, *, ended: bool, report: Report) -> None:
    """``ended``: the last attempt was not cut off, so all that it tells was committed."""
    made = {(p.commit.attempt, p.commit.step) for p in commits.every if p.commit.step > 0}
    told: dict[tuple[int, int], int] = {}
    for line in lines:
        record = line.record
        bad = [name for name, value in record.items() if not _figure(value)]
        for name in bad:
            report.found(FILE, line.number, f"{name} is {record[name]!r}, not a finite number")
        if _STEP not in record or {"step", "attempt"} & set(bad):
            continue
        this = int(record.get("attempt", 1)), int(record.get("step", -1))
        if this in told:
            report.found(FILE, line.number, f"step {this[1]} of attempt {this[0]} is there twice")
        told.setdefault(this, line.number)
    report.checked["lines of metrics"] += len(lines)
    last = dict(sorted(told))
    for attempt, step in sorted(told.keys() - made):
        cut_off = step == last[attempt] and not (ended and attempt == max(last))
        if not cut_off:
            what = f"step {step} of attempt {attempt} was never committed"
            report.found(FILE, told[attempt, step], what)
    for placed in commits.standing:
        step, attempt = placed.commit.step, placed.commit.attempt
        if step > 0 and (attempt, step) not in told:
            report.found(FILE, None, f"step {step} of attempt {attempt} has no line")


def _figure(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
