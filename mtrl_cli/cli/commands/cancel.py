"""``mtrl cancel``: end a run, or settle one that has ended or died, and say what is left."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mtrl_cli.cli.failures import Teller, interruptible
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless, no_sign_of_life
from mtrl_cli.runs.cancel import Cancelled, cancel
from mtrl_cli.runs.control import Ask, requested
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.registry import NoSuchRun, RunRecord, find_run

if TYPE_CHECKING:
    from mtrl_cli.runs.reap import Reaped

ENDED, NO_SUCH_RUN, STILL_RUNNING, QUARANTINED, INTERRUPTED = 0, 3, 4, 5, 130

_ASKED = {Ask.DRAIN: "drain", Ask.STOP: "stop now", Ask.KILL: "abort"}


def cancel_run(
    asked: str, ask: Ask, wait: float, runs: Path, teller: Teller, *, as_json: bool
) -> int:
    """Cancel the run that ``asked`` names; the exit code."""
    try:
        run = find_run(runs, asked)
    except NoSuchRun as error:
        teller.tell(error)
        return NO_SUCH_RUN
    try:
        with interruptible():
            outcome = cancel(run, ask, wait, _settle, partial(_tell_wait, ask, wait))
    except KeyboardInterrupt:
        given = requested(run.path, run.attempt)
        told = f"{run.id}: no longer waiting"
        told += (
            f"; its request to {_ASKED[given]} stays" if given else "; cancel it again to settle it"
        )
        Screen(sys.stderr).prose(harmless(told))
        return INTERRUPTED
    told = "; ".join(_said(outcome, wait, runs))
    Screen(sys.stderr if as_json else sys.stdout).prose(harmless(told))
    if as_json:
        Screen(sys.stdout).line(_object(outcome))
    return _code(outcome)


def _settle(run: Path) -> "Reaped":
    from mtrl_cli.training.settling.reaping import settle

    return settle(run, lambda text: Screen(sys.stderr).prose(harmless(text)))


def _tell_wait(ask: Ask, wait: float, run: RunRecord) -> None:
    silent = _silent(run)
    how = f" ({silent})" if silent else ""
    told = f"asked {run.id} to {_ASKED[ask]}{how}; waiting for its end, at most {wait:g} s"
    Screen(sys.stderr).prose(harmless(f"{told} (Ctrl-C leaves the request)"))


def _silent(run: RunRecord) -> str | None:
    """How its process, which is there, gives no sign of life."""
    silent = run.silence()
    if silent is None:
        return None
    return no_sign_of_life(silent.seconds, silent.stopped, run.state["pid"])


def _code(outcome: Cancelled) -> int:
    if outcome.now == "running":
        return STILL_RUNNING
    return QUARANTINED if outcome.left else ENDED


def _object(outcome: Cancelled) -> str:
    reaped = outcome.reaped
    facts = {
        "run_id": outcome.run.id,
        "was": outcome.was,
        "asked": outcome.asked.word,
        "now": outcome.now,
        "left": list(outcome.left),
        "returned": list(reaped.returned) if reaped else [],
        "unknown_calls": list(reaped.unknown_calls) if reaped else [],
    }
    return json.dumps(facts)


def _said(outcome: Cancelled, wait: float, runs: Path) -> Iterator[str]:
    """What it was, what was asked, what it is now, what is left."""
    run, reaped = outcome.run, outcome.reaped
    reason = run.state.get("reason")
    if outcome.now == "running":
        yield f"{run.id} is still running after {wait:g} s, asked to {_ASKED[outcome.asked]}"
        if silent := _silent(run):
            yield silent
        yield _further(outcome, runs, hears=silent is None)
        return
    if outcome.was == "running":
        yield f"{run.id} was running, asked to {_ASKED[outcome.asked]}"
        yield f"now {outcome.now}" + (f" ({reason})" if reason else "")
    elif outcome.ended_before:
        yield f"{run.id} has already ended: {outcome.now}"
    else:
        yield f"{run.id} was not running any more ({reason})"
        yield "now lost"
    if reaped is not None:
        if reaped.returned:
            yield f"returned: {', '.join(reaped.returned)}"
        if reaped.unknown_calls:
            yield f"may have been executed: {', '.join(reaped.unknown_calls)}"
    if outcome.left:
        yield f"LEFT: {', '.join(outcome.left)}"
    elif outcome.was == "running" or reaped is not None:
        yield "nothing is left"


def _further(outcome: Cancelled, runs: Path, *, hears: bool) -> str:
    """What goes further than what was asked."""
    again = f"mtrl cancel {outcome.run.id}{runs_dir_option(runs)}"
    state = outcome.run.state
    by_hand = f"kill -9 {state.get('pid')} on {state.get('host')} ends it, {again} then settles it"
    if not hears:
        return by_hand
    if outcome.asked is Ask.DRAIN:
        return f"{again} --now drops what is in flight, --kill ends it at once"
    if outcome.asked is Ask.STOP:
        return f"{again} --kill ends it at once"
    return by_hand
