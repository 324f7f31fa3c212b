"""``mtrl runs``: the runs under a folder, the newest first."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrl_cli.display.terminal import Screen, columns
from mtrl_cli.display.text import harmless, reward, run_tail, short_age, table
from mtrl_cli.display.wrapping import cells
from mtrl_cli.runs.places import require_runs_dir
from mtrl_cli.runs.processes import stopped
from mtrl_cli.runs.registry import RunRecord, list_runs

_HEADS = ("run", "kind", "experiment", "status", "step", "age", "evaluation", "quarantined")
_LONGEST = 32
"""Characters of a name on a terminal; elsewhere it is never cut."""


def show_runs(runs: Path, *, as_json: bool) -> int:
    """Print the runs; the exit code.

    Raises:
        UsageError: the folder that was asked for is not there.
    """
    require_runs_dir(runs)
    found = list_runs(runs)
    now = time.time()
    if as_json:
        facts = [_facts(run, now) for run in found]
        Screen(sys.stdout).line(json.dumps(facts, indent=2))
    elif not found:
        Screen(sys.stderr).line(harmless(f"no runs in {runs} (see --runs-dir)"))
    else:
        screen = Screen(sys.stdout)
        width = columns()
        longest = _LONGEST if width else None
        rows = [_HEADS, *(_row(run, now, longest) for run in found)]
        if not any(run.quarantined for run in found):
            rows = [row[:-1] for row in rows]
        names = [_HEADS.index("experiment")]
        lines = [*table(rows, width, cut=names)]
        if width is not None and max(map(cells, lines)) > width:
            short = [(run_tail(run), *more) for run, *more in rows]
            lines = [*table(short, width, cut=names)]
        for line in lines:
            screen.line(line)
        _hint([run.id for run in found if run.status == "lost" and not _settled(run)])
    return 0


def _facts(run: RunRecord, now: float) -> dict[str, Any]:
    state = run.state
    return {
        "run_id": run.id,
        "experiment": state.get("experiment"),
        "kind": state.get("kind"),
        "status": run.status,
        "reason": state.get("reason"),
        "attempt": state.get("attempt"),
        "step": state.get("step", 0),
        "steps": state.get("steps"),
        "created": state.get("created"),
        "ended": state.get("ended"),
        "age": _age(state, now),
        "policy": state.get("policy"),
        "evaluation": state.get("evaluation", {}),
        "held": run.held,
        "quarantined": len(run.quarantined),
        "folder": str(run.path),
    }


def _age(state: Mapping[str, Any], now: float) -> float | None:
    created = state.get("created")
    return round(max(now - created, 0.0), 1) if isinstance(created, int | float) else None


def _row(run: RunRecord, now: float, longest: int | None) -> tuple[str, ...]:
    state, age = run.state, _age(run.state, now)
    step, steps = state.get("step", 0), state.get("steps")
    return (
        harmless(run.id),
        harmless(str(state.get("kind", "-")), longest),
        harmless(str(state.get("experiment", "-")), longest),
        harmless(_status(run), longest),
        f"{step}/{steps}" if steps else "-" if state.get("kind") != "train" else f"{step}",
        "-" if age is None else short_age(age),
        _evaluation(state.get("evaluation")),
        str(len(run.quarantined) or "-"),
    )


def _status(run: RunRecord) -> str:
    if run.status == "running" and stopped(run.state):
        return "running (stopped)"
    settled = run.status == "lost" and _settled(run) and not run.quarantined
    return "lost, settled" if settled else run.status


def _settled(run: RunRecord) -> bool:
    """Whether what a lost run held has been seen to."""
    return "reaped" in run.state


def _evaluation(evaluation: Any) -> str:
    """The means before and after training, or of an evaluation, as far as there are any."""
    if not isinstance(evaluation, dict):
        return "-"
    means = [
        reward(figures.get("mean"))
        for when in ("before", "after", "eval")
        if isinstance(figures := evaluation.get(when), dict)
    ]
    return " → ".join(means) or "-"


def _hint(lost: Sequence[str]) -> None:
    if lost:
        many = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        told = f"what a lost run held is returned by: mtrl cancel {lost[0]}{many}"
        Screen(sys.stderr).prose(harmless(told))
