"""What a sweep says at its end: its runs side by side, and the means over their seeds."""

import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mtrl_cli.display.lines import Redact, with_error
from mtrl_cli.display.summary import LAST_STEPS
from mtrl_cli.display.terminal import Screen, columns
from mtrl_cli.display.text import clock, harmless, reward, run_tail, table
from mtrl_cli.display.wrapping import Fact, cells, laid_out
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.training.evaluation.statistics import mean_of

if TYPE_CHECKING:
    from mtrl_cli.training.events import RunFinished

_HEADS = ("status", "steps", "reward", "before", "after", "against", "time", "run")
SEED = "seed"
"""The key whose values say nothing of a setting."""
_NAMED = 12
"""Runs that did not begin that are told by name."""


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


Varied = Mapping[str, str]
"""What a run of a sweep has of its own: values by key."""


def compare(
    results: Sequence[Result], left: Sequence[Varied], redact: Redact, typed: Sequence[str] = ()
) -> None:
    """Show the comparison; ``left``: the runs that were not begun, of what was ``typed``."""
    screen = Screen(sys.stdout)
    screen.line()
    width = columns()
    lines = [*table(list(_rows(results)))]
    if width is not None and max(map(cells, lines)) > width:
        lines = [*table(list(_rows(results, short=True)), width)]
    for line in lines:
        screen.line(harmless(redact(line)))
    for line in (*_columns(results), *_over_seeds(results)):
        screen.prose(harmless(redact(line)))
    for line in laid_out(_report(results), width, redact):
        screen.line(line)
    if left:
        screen.prose(redact(_not_begun(left)))
    for line in laid_out(_the_rest(left, typed), width, redact):
        screen.line(line)


def compare_as_event(results: Sequence[Result], left: int, redact: Redact, to: TextIO) -> None:
    """The same for a script."""
    from mtrl_cli.display.events import event_line

    facts = {"runs": [_object(result) for result in results], "not_begun": left}
    Screen(to).line(event_line("multirun_finished", facts, time.time(), redact))


def _not_begun(left: Sequence[Varied]) -> str:
    """Which runs a signal has kept from beginning."""
    more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return harmless(f"not begun: {'; '.join(map(named, left[:_NAMED]))}{more}")


def _the_rest(left: Sequence[Varied], typed: Sequence[str]) -> Iterator[Fact]:
    """The commands that run them after all: what was typed, with the values that are left."""
    sweeps = list(_products(left, list(left[0]))) if left else []
    for number, values in enumerate(sweeps):
        arguments = ["mtrl"]
        for argument in typed:
            key, _, value = argument.partition("=")
            rest = values.get(key.lstrip("+")) if value else None
            arguments.append(f"{key}={','.join(rest)}" if rest else argument)
        command = harmless(" ".join(map(shlex.quote, arguments)))
        yield Fact("" if number else "the rest", command, copied=True)


def _products(left: Sequence[Varied], keys: Sequence[str]) -> Iterator[dict[str, list[str]]]:
    """``left``, the last runs of a sweep over ``keys``, as whole sweeps in the same order: values
    by key."""
    values = {key: list(dict.fromkeys(varied[key] for varied in left)) for key in left[0]}
    if math.prod(map(len, values.values())) == len(left):
        yield values
        return
    begun = [varied for varied in left if varied[keys[0]] == left[0][keys[0]]]
    yield from _products(begun, keys[1:])
    if others := left[len(begun) :]:
        yield from _products(others, keys)


def named(varied: Varied) -> str:
    """A run of a sweep in words: ``seed=1 group.size=8``."""
    return " ".join(f"{key}={value}" for key, value in varied.items()) or "as configured"


def _rows(results: Sequence[Result], *, short: bool = False) -> Iterator[list[str]]:
    """The comparison: what was varied, then the figures; columns without any are left out.
    ``short`` names the runs by the last part of their ids."""
    keys = list(dict.fromkeys(key for result in results for key in result.varied))
    figures = [_figures(result) for result in results]
    if short:
        figures = [row | {"run": run_tail(row["run"])} for row in figures]
    shown = [name for name in _HEADS if any(row[name] != "-" for row in figures)]
    yield [*keys, *shown]
    for result, row in zip(results, figures, strict=True):
        yield [*(result.varied.get(key, "-") for key in keys), *(row[name] for name in shown)]


def _columns(results: Sequence[Result]) -> Iterator[str]:
    """What the rewards in the table are of; nothing where there are none."""
    runs = [result.finished for result in results if result.finished]
    if any(run.evaluated for run in runs):
        against = "; against: of the other policy" if any(run.before for run in runs) else ""
        yield f"reward: mean of the games that were evaluated{against}"
    elif any(result.reward is not None for result in results):
        steps = max((run.steps for run in runs), default=0)
        what = f"the last {LAST_STEPS} steps" if steps > LAST_STEPS else "all steps"
        what = what if steps else "all episodes"
        both = any(run.before or run.after for run in runs)
        yield f"reward: mean of {what}" + ("; before, after: of the evaluations" if both else "")


def _over_seeds(results: Sequence[Result]) -> Iterator[str]:
    """Of settings that were run more than once: the means over the runs, each ± its standard error
    over them. Runs that broke off, or were not evaluated, are in none."""
    settings: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        run = result.finished
        if run is not None and run.status == "finished" and run.before and run.after:
            told = (f"{key}={value}, " for key, value in result.varied.items() if key != SEED)
            settings.setdefault("".join(told), []).append((run.before.mean, run.after.mean))
    for setting, pairs in settings.items():
        if len(pairs) > 1:
            before, after = (_over_runs(values) for values in zip(*pairs, strict=True))
            gain = _over_runs([after - before for before, after in pairs], "+")
            line = f"{setting}{len(pairs)} runs: before {before} → after {after}, {gain}"
            yield line + (", ± standard error over the runs" if "±" in line else "")


def _over_runs(values: Sequence[float], sign: str = "") -> str:
    """Their mean ± its standard error, or the one value that all have: runs that begin with the
    same policy evaluate it on the same games, which says nothing of an error."""
    if len(set(values)) == 1:
        return f"{with_error(values[0], None, sign)} in all"
    mean = mean_of(values)
    return with_error(mean.value, mean.se, sign)


def _report(results: Sequence[Result]) -> Iterator[Fact]:
    """The command that draws the trained runs over each other; nothing where there are not two."""
    trained = [one.finished for one in results if one.finished and one.finished.steps]
    if len(trained) > 1:
        folders = [Path(finished.folder) for finished in trained]
        names, option = [run_tail(one.run) for one in trained], runs_dir_option(folders[0].parent)
        if len({folder.parent for folder in folders}) > 1:  # as paths, which need a /
            names = [str(one) if "/" in str(one) else f"./{one}" for one in folders]
            option = ""
        command = f"mtrl report {' '.join(map(shlex.quote, names))}{option}"
        yield Fact("compare", harmless(command), copied=True)


def _figures(result: Result) -> dict[str, str]:
    finished = result.finished
    after, evaluated = finished and finished.after, finished and finished.evaluated
    other = finished and finished.before
    before, against = (None, other) if evaluated else (other, None)
    return {
        "status": result.status if result.code in (0, 130) else f"{result.status} ({result.code})",
        "steps": str(finished.steps) if finished and finished.steps else "-",
        "reward": reward(evaluated.mean if evaluated else result.reward),
        "before": reward(before.mean if before else None),
        "after": reward(after.mean if after else None),
        "against": reward(against.mean if against else None),
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
