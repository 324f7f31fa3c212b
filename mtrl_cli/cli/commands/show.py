"""``mtrl show RUN``: what a run has reached, from its files alone, and what can be done with it."""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mtrl_cli.cli.commands.next_steps import next_steps, settling
from mtrl_cli.cli.running.live_file import restored
from mtrl_cli.display.lines import doing, evaluation_name, games_of
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.state import RunState
from mtrl_cli.display.summary import summary
from mtrl_cli.display.terminal import Screen, columns
from mtrl_cli.display.text import clock, harmless, no_sign_of_life, short_age
from mtrl_cli.display.words import reasons
from mtrl_cli.display.wrapping import Fact, laid_out
from mtrl_cli.runs.commits import History, read_history
from mtrl_cli.runs.ledger import LedgerEntry
from mtrl_cli.runs.reap import read_entries
from mtrl_cli.runs.registry import RunRecord, find_run
from mtrl_cli.training.events import RunFinished
from mtrl_cli.training.telling.reading import last_seen, resumable, story

UNKNOWN_SHOWN = 20
WARNINGS_SHOWN = 5


@dataclass(frozen=True)
class Shown:
    """Everything that is told of one run."""

    run: RunRecord
    state: RunState
    history: History
    entries: tuple[LedgerEntry, ...]


def show_run(asked: str, runs: Path, *, as_json: bool) -> int:
    """Print what is known of the run that ``asked`` names; the exit code.

    Raises:
        NoSuchRun: there is none, or several.
        MtrlError: its files are damaged.
    """
    shown = read(find_run(runs, asked))
    screen = Screen(sys.stdout)
    if as_json:
        screen.line(json.dumps(_finite(_facts(shown)), indent=2))
    else:
        for line in _text(shown, columns()):
            screen.line(harmless(line))
    return 0


def read(run: RunRecord) -> Shown:
    """Read a run's files."""
    kind = str(run.state.get("kind", "run"))
    plan = DisplayPlan(f"{kind} {run.state.get('experiment', '?')}", keep_groups=kind == "rollout")
    told = story(run)
    state = RunState(plan, told[0][0])
    for when, event in told:
        state.apply(event, when)
    history = read_history(run.path / "commits.jsonl")
    return Shown(run, state, history, tuple(read_entries(run.path)))


def _text(shown: Shown, width: int | None) -> Iterator[str]:
    run, state = shown.run, shown.state
    kind = run.state.get("kind", "run")
    yield f"{run.id}  {kind} {run.state.get('experiment', '?')}  {run.status}{_age(run)}"
    if state.finished is not None:
        state.finished = replace(state.finished, resumable=None)  # `next_steps` tells that
        yield from summary(state, last_seen(run), width=width)
    else:
        yield from laid_out(_so_far(shown), width)
    next_ones = next_steps(run, shown.history)
    yield from laid_out([*_kept(shown), *next_ones], width)


def _so_far(shown: Shown) -> Iterator[Fact]:
    """Of a run that goes on."""
    run, state = shown.run, shown.state
    now = time.time()
    if silent := run.silence():
        told = no_sign_of_life(silent.seconds, silent.stopped, run.state["pid"])
        yield Fact("silent", told)
    if restored(state, run.path, now):
        yield Fact("now", doing(state, now))
    if state.steps:
        yield Fact("steps", f"{state.step} of {state.steps} committed")
    if state.rewards:
        yield Fact("reward", f"{state.rewards[-1]:.3f} in the last step")
    for result in state.evaluations:
        name = evaluation_name(result.label, result.policy)
        yield Fact("evaluation", f"{name}: {result.mean:.3f} over {games_of(result)}")
    yield Fact("run", str(run.path), copied=True)
    if run.state.get("policy"):
        yield Fact("policy", str(run.state["policy"]), copied=True)


def _kept(shown: Shown) -> Iterator[Fact]:
    """What the files say beside the summary."""
    run, history = shown.run, shown.history
    last, stated = history.last, history.last_with_state
    if last is not None:
        where = "none" if stated is None else f"the last one at step {stated.step}"
        yield Fact("commits", f"step {last.step} stands; training states: {where}")
    yield from _warned(run)
    if run.attempt > 1:
        began = [f"{one.get('attempt')} at step {one.get('step')}" for one in _resumed(run)]
        yield Fact("attempts", f"{run.attempt}; resumed: {', '.join(began)}")
    calls = Counter(one.state for one in shown.entries if one.entry == "call")
    if calls:
        yield Fact("calls", f"training calls: {reasons(calls)}")
    for key in _unknown(shown)[:UNKNOWN_SHOWN]:
        yield Fact("UNKNOWN", f"{key}: it may have been executed; it is not sent again")
    borrows = Counter(one.state for one in shown.entries if one.entry == "borrow")
    if borrows:
        yield Fact("borrows", reasons(borrows))
    yield from settling(run)


def _warned(run: RunRecord) -> Iterator[Fact]:
    """What was told while it went on."""
    told = _records(run.state.get("notices"))
    texts = list(dict.fromkeys(str(one.get("text")) for one in told))
    for number, text in enumerate(texts[:WARNINGS_SHOWN]):
        yield Fact("" if number else "warned", text)
    if len(texts) > WARNINGS_SHOWN:
        yield Fact("", f"and {len(texts) - WARNINGS_SHOWN} more in {run.path / 'run.json'}")


def _age(run: RunRecord) -> str:
    created = run.state.get("created")
    if not isinstance(created, int | float):
        return ""
    if run.status == "running":
        return f" for {clock(time.time() - created)}"
    return f", begun {short_age(max(time.time() - created, 0))} ago"


def _resumed(run: RunRecord) -> list[Mapping[str, Any]]:
    return _records(run.state.get("resumed"))


def _records(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _unknown(shown: Shown) -> list[str]:
    """Training calls without a known outcome. Of a run that goes on, one is just in flight."""
    over = shown.run.status != "running"
    return [
        one.key
        for one in shown.entries
        if one.entry == "call" and (one.state == "unknown" or (one.open and over))
    ]


def _facts(shown: Shown) -> dict[str, Any]:
    run, state, history = shown.run, shown.state, shown.history
    finished: RunFinished | None = state.finished
    left = resumable(run, history)
    return {
        "run_id": run.id,
        "folder": str(run.path),
        "kind": run.state.get("kind"),
        "experiment": run.state.get("experiment"),
        "status": run.status,
        "reason": run.state.get("reason"),
        "created": run.state.get("created"),
        "ended": run.state.get("ended"),
        "attempt": run.attempt,
        "resumed": _resumed(run),
        "step": state.step,
        "steps": state.steps,
        "policy": run.state.get("policy"),
        "commits": [
            {
                "step": one.step,
                "attempt": one.attempt,
                "policy": one.policy,
                "state": one.state,
                "groups": dict(Counter(one.groups.values())),
            }
            for one in history.commits
        ],
        "rewards": state.rewards,
        "evaluation": run.state.get("evaluation", {}),
        "parity": {
            "steps": len(state.audits),
            "max": max((most for most, _ in state.audits), default=None),
        },
        "episodes": finished.episodes if finished else None,
        "sampled_tokens": finished.sampled_tokens if finished else None,
        "skipped": dict(finished.skipped) if finished else None,
        "calls": dict(Counter(one.state for one in shown.entries if one.entry == "call")),
        "unknown_calls": _unknown(shown),
        "borrows": dict(Counter(one.state for one in shown.entries if one.entry == "borrow")),
        "held": run.held,
        "quarantined": list(run.quarantined),
        "resumable": None if left is None else asdict(left),
    }


def _finite(node: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(node, float) and not math.isfinite(node):
        return None
    if isinstance(node, Mapping):
        return {key: _finite(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_finite(value) for value in node]
    return node
