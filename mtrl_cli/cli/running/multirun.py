"""``--multirun``: one run for every combination of values, one after the other, and a comparison.

All are composed and checked before the first one begins. One that fails is told, and the next one
begins; a signal settles the one that runs, and none begins after it.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from mtrl_cli.cli.failures import FAILED, Teller
from mtrl_cli.cli.running.comparison import SEED, Result, compare, compare_as_event, named
from mtrl_cli.cli.running.experiment import Asked, Shown, planned, prepared
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.sweep import combinations
from mtrl_cli.display.plan import Place
from mtrl_cli.display.summary import LAST_STEPS
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless

if TYPE_CHECKING:
    from mtrl_cli.cli.running.session import Session, Work
    from mtrl_cli.display.state import RunState

QUARANTINED = 5

Prepare = Callable[..., "tuple[Session, Work]"]
"""As `prepared`: from what is asked, composed and shown to what runs it."""

Plan = Callable[[Asked, Composed], dict[str, Any]]
"""As `planned`."""


def sweep(
    asked: Asked,
    teller: Teller,
    shown: Shown,
    prepare: Prepare = prepared,
    plan: Plan = planned,
) -> int:
    """Run every combination that ``asked`` stands for; the exit code.

    Raises:
        ConfigError: one of them cannot be run; none has begun then.
    """
    runs = []
    seen: dict[str, Mapping[str, str]] = {}
    for varied, overrides in combinations(asked.overrides):
        one = replace(asked, overrides=overrides)
        composed = compose(None, overrides, asked.config_dirs)
        teller.concerns(composed)
        experiment = resolve(composed, secrets=False)
        refuse_invalid(experiment, composed, training=asked.trains)
        if (first := seen.setdefault(repr(composed.container), varied)) is not varied:
            raise ConfigError(
                f"two runs of the sweep are the same: {named(first)} and {named(varied)}",
                hint="take one out: it would count twice in the mean and its standard error",
            )
        runs.append((varied, one, composed))
    if shown.dry_run:
        return _show_plans(runs, shown, plan)
    results: list[Result] = []
    with _noted() as signalled:
        for number, (varied, one, composed) in enumerate(runs, 1):
            if signalled:
                break
            teller.concerns(composed)
            _say(shown, f"run {number}/{len(runs)}: {named(varied)}")
            placed = replace(one, place=_place(number, len(runs), varied, results))
            result, stopped = _run(varied, placed, composed, teller, shown, prepare)
            results.append(result)
            if stopped:
                signalled.append(result.code - 128)
    left = [varied for varied, _, _ in runs[len(results) :]]
    if shown.events is None:
        compare(results, left, teller.redact, sys.argv[1:])
    else:
        compare_as_event(results, len(left), teller.redact, shown.events)
    return _code(results, signalled)


def _run(
    varied: Mapping[str, str],
    asked: Asked,
    composed: Composed,
    teller: Teller,
    shown: Shown,
    prepare: Prepare,
) -> tuple[Result, bool]:
    """One run, and whether a signal ended it."""
    began = time.monotonic()
    try:
        session, work = prepare(asked, composed, teller, shown, goes_on=True)
    except Exception as error:
        code = teller.tell(error)
        return Result(varied, code, time.monotonic() - began, None, None), False
    code = session.run(work)
    state = session.state
    seconds = time.monotonic() - began
    result = Result(varied, code, seconds, _reward(state), state.finished)
    return result, session.signalled


def _place(number: int, runs: int, varied: Mapping[str, str], results: Sequence[Result]) -> Place:
    """Where a run stands. Those that differ by their seed alone do the same work."""
    took = [result.seconds for result in results if result.status == "finished"]
    return Place(number, runs, alike=set(varied) == {SEED}, took=took)


def _reward(state: "RunState") -> float | None:
    played = [value for group in state.finished_groups for value in group.rewards]
    values = state.rewards[-LAST_STEPS:] or played
    return sum(values) / len(values) if values else None


def _code(results: Sequence[Result], signalled: Sequence[int]) -> int:
    if signalled:
        return 128 + signalled[0]
    codes = {result.code for result in results} - {0}
    if not codes:
        return 0
    return QUARANTINED if codes == {QUARANTINED} else FAILED


@contextmanager
def _noted() -> Iterator[list[int]]:
    """Between two runs a signal ends the sweep; during one it is the run's own."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, note)
    yield seen


def _show_plans(
    runs: Sequence[tuple[Mapping[str, str], Asked, Composed]], shown: Shown, plan: Plan
) -> int:
    plans = [(varied, plan(asked, composed)) for varied, asked, composed in runs]
    screen = Screen(sys.stdout)
    if shown.as_json:
        each = [{"varied": dict(varied), **facts} for varied, facts in plans]
        text = json.dumps({"runs": each}, indent=2)
        for _, _, composed in runs:
            text = composed.redact(text)
        screen.line(text)
        return 0
    for number, ((varied, facts), (_, _, composed)) in enumerate(zip(plans, runs, strict=True), 1):
        episodes = f"{facts['trajectories']:,} episodes"
        told = f"run {number}/{len(runs)}: {named(varied)}, {episodes}"
        screen.prose(harmless(composed.redact(told)))
    screen.line()
    screen.line("Dry run complete. To start them, remove --dry-run from your command.")
    return 0


def _say(shown: Shown, text: str) -> None:
    if not shown.quiet:
        Screen(sys.stderr if shown.as_json else sys.stdout).line(harmless(text))
