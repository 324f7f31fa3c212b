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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mtrl_cli.cli.experiment import Asked, Shown, planned, prepared
from mtrl_cli.cli.failures import FAILED, Teller
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.sweep import combinations
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import clock, harmless, reward, table
from mtrl_cli.runs.places import runs_dir_option

if TYPE_CHECKING:
    from mtrl_cli.cli.session import Session, Work
    from mtrl_cli.display.state import RunState
    from mtrl_cli.training.events import RunFinished

LAST_STEPS = 10
"""Steps whose mean reward stands in the comparison."""

QUARANTINED = 5

Prepare = Callable[..., "tuple[Session, Work]"]
"""As `prepared`: from what is asked, composed and shown to what runs it."""

Plan = Callable[[Asked, Composed], dict[str, Any]]
"""As `planned`."""


@dataclass(frozen=True)
class Result:
    """One run of a sweep."""

    varied: Mapping[str, str]
    code: int
    seconds: float
    reward: float | None
    """Mean reward of the last steps, or of all that was played."""
    finished: "RunFinished | None"
    """None where the run broke off with an error."""

    @property
    def status(self) -> str:
        return self.finished.status if self.finished else "failed"


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
    for varied, overrides in combinations(asked.overrides):
        one = replace(asked, overrides=overrides)
        composed = compose(None, overrides, asked.config_dirs)
        teller.concerns(composed)
        experiment = resolve(composed, secrets=False)
        refuse_invalid(experiment, composed, training=asked.trains)
        runs.append((varied, one, composed))
    if shown.dry_run:
        return _show_plans(runs, shown, plan)
    results: list[Result] = []
    with _noted() as signalled:
        for number, (varied, one, composed) in enumerate(runs, 1):
            if signalled:
                break
            teller.concerns(composed)
            _say(shown, f"run {number}/{len(runs)}: {_named(varied)}")
            result, stopped = _run(varied, one, composed, teller, shown, prepare)
            results.append(result)
            if stopped:
                signalled.append(result.code - 128)
    _compare(results, len(runs), teller, shown)
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
        told = f"run {number}/{len(runs)}: {_named(varied)}, {episodes}"
        screen.line(harmless(composed.redact(told)))
    screen.line()
    screen.line("Dry run complete. To start them, remove --dry-run from your command.")
    return 0


def _compare(results: Sequence[Result], runs: int, teller: Teller, shown: Shown) -> None:
    left = runs - len(results)
    if shown.events is not None:
        from mtrl_cli.display.events import event_line

        facts = {"runs": [_object(result) for result in results], "not_begun": left}
        line = event_line("multirun_finished", facts, time.time(), teller.redact)
        Screen(shown.events).line(line)
        return
    screen = Screen(sys.stdout)
    screen.line()
    for line in table(list(_rows(results))):
        screen.line(harmless(teller.redact(line)))
    if told := _report(results):
        screen.line(harmless(teller.redact(told)))
    if left:
        screen.line(f"{left} not begun")


def _rows(results: Sequence[Result]) -> Iterator[list[str]]:
    """The comparison: what was varied, then the figures; columns without any are left out."""
    keys = list(dict.fromkeys(key for result in results for key in result.varied))
    figures = [_figures(result) for result in results]
    shown = [name for name in _HEADS if any(row[name] != "-" for row in figures)]
    yield [*keys, *shown]
    for result, row in zip(results, figures, strict=True):
        yield [*(result.varied.get(key, "-") for key in keys), *(row[name] for name in shown)]


def _report(results: Sequence[Result]) -> str:
    """The command that draws the trained runs over each other; nothing where there are not two."""
    trained = [one.finished for one in results if one.finished and one.finished.steps]
    if len(trained) < 2:
        return ""
    names = " ".join(finished.run for finished in trained)
    return f"compare    mtrl report {names}{runs_dir_option(Path(trained[0].folder).parent)}"


_HEADS = ("status", "steps", "reward", "before", "after", "time", "run")


def _figures(result: Result) -> dict[str, str]:
    finished = result.finished
    after = finished and (finished.after or finished.evaluated)
    before = finished and finished.before
    return {
        "status": result.status if result.code in (0, 130) else f"{result.status} ({result.code})",
        "steps": str(finished.steps) if finished and finished.steps else "-",
        "reward": reward(result.reward),
        "before": reward(before.mean if before else None),
        "after": reward(after.mean if after else None),
        "time": clock(result.seconds),
        "run": finished.run if finished and finished.run else "-",
    }


def _object(result: Result) -> dict[str, Any]:
    finished = result.finished
    return {
        "varied": dict(result.varied),
        "exit_code": result.code,
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "reward": result.reward,
        "finished": None if finished is None else asdict(finished),
    }


def _say(shown: Shown, text: str) -> None:
    if not shown.quiet:
        Screen(sys.stderr if shown.as_json else sys.stdout).line(harmless(text))


def _named(varied: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in varied.items()) or "as configured"
