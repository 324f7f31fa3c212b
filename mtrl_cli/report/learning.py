"""The learning curve, and the sentences that say how exactly it was computed.

A setting of one run is drawn as that run. Of a setting of several (seeds) each run is a thin line,
and their mean a thick one with a band: at each step that all of them have, the mean of the lines
drawn and its standard error s/√n, s with divisor n − 1, n the number of runs. The sentences tell
what this figure shows and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mtrl_cli.report.facts import Line, RunFacts
from mtrl_cli.report.marks import Mark, placed
from mtrl_cli.report.naming import Setting
from mtrl_cli.report.svg import COLOURS, Chart, Point, Series
from mtrl_cli.training.evaluation.statistics import mean_of

SMOOTHED_FROM = 20
"""Steps of the longest run from which on a running mean is drawn."""
WINDOW = 10

PointsOf = Callable[[RunFacts], Sequence[Point]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean reward at a step, its standard error over the games, and their number."""

    step: float
    mean: float
    se: float | None
    games: int | None


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and what is to be said of it."""

    chart: Chart
    note: str


def learning_curve(settings: Sequence[Setting]) -> Figure:
    """Mean reward of each step's episodes, evaluations as marks, the task's reference lines."""
    runs = [run for setting in settings for run in setting.runs]
    smooth = max(len(_rewards(run)) for run in runs) >= SMOOTHED_FROM
    series: list[Series] = []
    marks: list[Mark] = []
    for colour, setting in enumerate(settings):
        if smooth:
            averaged = len(setting.runs) > 1
            series += [] if averaged else [_each(setting, colour, "faint")]
            series += lines_of(setting, colour, _smoothed, band=True)
        elif len(setting.runs) == 1:
            series.append(_each(setting, colour, "line"))
        else:
            series += lines_of(setting, colour, _points, band=True)
        marks += _marks(setting, colour)
    known = [run.references for run in runs if run.references]
    shared = known[0] if known and all(each == known[0] for each in known) else {}
    references = tuple(shared.items())
    axis = "mean reward"
    chart = Chart("Mean reward by step", series, axis, references, marks=marks, large=True)
    return Figure(chart, " ".join(_sentences(settings, chart, smooth)))


def lines_of(
    setting: Setting, colour: int, points_of: PointsOf, *, band: bool = False
) -> list[Series]:
    """A line for a single run; for several a thin one each, and the thick one of their mean."""
    lines = [points_of(run) for run in setting.runs]
    if len(lines) == 1:
        return [Series(setting.named[0], lines[0], colour)]
    thin = [
        Series(name, points, colour, weight="thin")
        for name, points in zip(setting.named, lines, strict=True)
    ]
    points, spread = mean_line(lines)
    name = f"{setting.name}: mean of {setting.count}".removeprefix(": ")
    return [*thin, Series(name, points, colour, spread if band else (), "thick")]


def mean_line(lines: Sequence[Sequence[Point]]) -> tuple[list[Point], list[float]]:
    """The mean of at least two lines at each step that all have, and its standard errors."""
    heights = [dict(points) for points in lines]
    steps = sorted(set.intersection(*(set(one) for one in heights)))
    means = [mean_of([one[step] for one in heights]) for step in steps]
    points = [(step, mean.value) for step, mean in zip(steps, means, strict=True)]
    return points, [mean.se or 0.0 for mean in means]


def running_mean(points: Sequence[Point], window: int) -> list[Point]:
    """The mean of each point and up to ``window`` - 1 before it."""
    means = []
    for index, (x, _) in enumerate(points):
        last = [y for _, y in points[max(0, index - window + 1) : index + 1]]
        means.append((x, sum(last) / len(last)))
    return means


def evaluations(run: RunFacts) -> list[Evaluation]:
    """Those before, during and after training, one a step, in the order of steps."""
    found = {
        float(line["step"]): Evaluation(
            float(line["step"]), float(line["eval/mean"]), line.get("eval/se"), None
        )
        for line in run.evaluations
    }
    for label, step in (("before", 0.0), ("after", float(run.state.get("step", 0)))):
        figures = run.evaluation(label)
        if figures is not None:
            mean, games = float(figures["mean"]), int(figures["games"])
            found[step] = Evaluation(step, mean, figures.get("se"), games)
    return [found[step] for step in sorted(found)]


def _rewards(run: RunFacts) -> list[Line]:
    return [line for line in run.steps if "reward" in line]


def _points(run: RunFacts) -> list[Point]:
    return [(float(line["step"]), float(line["reward"])) for line in _rewards(run)]


def _smoothed(run: RunFacts) -> list[Point]:
    return running_mean(_points(run), WINDOW)


def _each(setting: Setting, colour: int, weight: str) -> Series:
    (run,) = setting.runs
    spread = [float(line.get("reward_se", 0.0)) for line in _rewards(run)]
    name = f"{setting.named[0]}: each step"
    return Series(name, _points(run), colour, () if weight == "faint" else spread, weight)


def _marks(setting: Setting, colour: int) -> Iterator[Mark]:
    """The evaluations; of several runs their mean at each step, and its standard error."""
    held = [evaluations(run) for run in setting.runs]
    if len(held) == 1:
        name = f"{setting.named[0]}: evaluation"
        yield from (Mark(name, "run", e.step, e.mean, e.se, colour) for e in held[0])
        return
    for step in sorted({e.step for each in held for e in each}):
        mean = mean_of([e.mean for each in held for e in each if e.step == step])
        name = f"{setting.name}: mean evaluation of {mean.count} runs".removeprefix(": ")
        yield Mark(name, "setting", step, mean.value, mean.se, colour)


def _sentences(settings: Sequence[Setting], chart: Chart, smooth: bool) -> Iterator[str]:
    averaged = any(len(setting.runs) > 1 for setting in settings)
    alone = any(len(setting.runs) == 1 for setting in settings)
    if any(line.points for line in chart.series):
        yield from _of_lines(averaged, alone, smooth)
    if chart.marks:
        of_runs = "the mean of the runs' evaluations, ± one standard error over the runs"
        of_games = "evaluations, ± one standard error over the games"
        told = [of_runs] * averaged + [of_games] * alone
        marks = "Circles" if len(settings) <= COLOURS else "Circles, squares and the like"
        yield f"{marks}: {'; of a single run '.join(told)}."
        if any(one.label for one in placed(chart.marks, 0.0)):
            yield "Equal ones are drawn once."
    if chart.references:
        yield "Dashed: policies that are known for the task."


def _of_lines(averaged: bool, alone: bool, smooth: bool) -> Iterator[str]:
    window = f"averaged over the last {WINDOW} steps (over fewer before step {WINDOW})"
    if averaged:
        yield "Thin: each run's mean reward of a step's episodes" + (f", {window}." * smooth or ".")
        yield "Thick: the mean of a setting's runs at each step that all of them have; band: ± one"
        yield "standard error of that mean, s/√n over its n runs."
        if alone:
            yield "A setting of one run has a line" + (
                " over its pale single steps." * smooth or "."
            )
    elif smooth:
        yield f"Pale: the mean reward of each step's episodes. Line: the same {window}."
    else:
        yield "Line: the mean reward of each step's episodes; band: ± one standard error."
