"""Which charts a report has: the same ones for one run and for several over each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtrl_cli.report.facts import Line, RunFacts
from mtrl_cli.report.svg import Chart, Point, Series, number

SMOOTHED_FROM = 20
"""Steps from which on a running mean is drawn over the single steps."""
WINDOW = 10
LEVEL = 1e-4
"""Up to this share of its size a figure may move and is still called the same."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its heading and what it shows."""

    heading: str
    note: str
    chart: Chart


def learning_curve(runs: Sequence[RunFacts], named: Sequence[str]) -> Chart:
    """Mean reward of each step's episodes, evaluations as marks, the task's reference lines."""
    series: list[Series] = []
    for colour, (name, run) in enumerate(zip(named, runs, strict=True)):
        lines = [line for line in run.steps if "reward" in line]
        points = [(float(line["step"]), float(line["reward"])) for line in lines]
        spread = [float(line.get("reward_se", 0.0)) for line in lines]
        smooth = len(points) >= SMOOTHED_FROM
        if smooth:
            series.append(Series(f"{name}: each step", points, colour, faint=True))
            mean = running_mean(points, WINDOW)
            series.append(Series(f"{name}: mean of {WINDOW} steps", mean, colour))
        else:
            series.append(Series(f"{name}: each step", points, colour, spread))
        marks, reach = evaluation_points(run)
        series.append(Series(f"{name}: evaluation", marks, colour, reach, marks=True))
    known = [run.references for run in runs if run.references]
    shared = known[0] if known and all(each == known[0] for each in known) else {}
    return Chart("Mean reward by step", series, "mean reward", tuple(shared.items()), large=True)


def evaluation_points(run: RunFacts) -> tuple[list[Point], list[float]]:
    """Evaluations before, during and after training: (step, mean), and their standard errors."""
    found = [
        (float(line["step"]), line["eval/mean"], line.get("eval/se")) for line in run.evaluations
    ]
    for label, step in (("before", 0.0), ("after", float(run.state.get("step", 0)))):
        figures = run.evaluation(label)
        if figures is not None:
            found.append((step, figures["mean"], figures.get("se")))
    found.sort(key=lambda item: item[0])
    return [(step, float(mean)) for step, mean, _ in found], [se or 0.0 for _, _, se in found]


def running_mean(points: Sequence[Point], window: int) -> list[Point]:
    """The mean of each point and up to ``window`` - 1 before it."""
    means = []
    for index, (x, _) in enumerate(points):
        last = [y for _, y in points[max(0, index - window + 1) : index + 1]]
        means.append((x, sum(last) / len(last)))
    return means


def panels(runs: Sequence[RunFacts], named: Sequence[str]) -> tuple[list[Panel], list[str]]:
    """The small charts, and those that are level, as ``Learning rate 0.001``; what no run has a
    figure for is left out."""
    made = [
        _panel(runs, named, heading, axis, note, value, log=log, from_zero=zero)
        for heading, axis, note, value, log, zero in _PANELS
    ]
    drawn, level = [], []
    for panel in made:
        heights = [y for line in panel.chart.series for _, y in line.points]
        if not heights:
            continue
        most = max(map(abs, heights))
        if len(heights) > 1 and max(heights) - min(heights) <= LEVEL * most:
            level.append(f"{panel.heading} {number(heights[0])}")
        else:
            drawn.append(panel)
    return drawn, level


def _panel(
    runs: Sequence[RunFacts],
    named: Sequence[str],
    heading: str,
    axis: str,
    note: str,
    value: Callable[[Line], float | None],
    *,
    log: bool,
    from_zero: bool,
) -> Panel:
    series = [
        Series(
            name,
            [(float(line["step"]), y) for line in run.steps if (y := value(line)) is not None],
            colour,
        )
        for colour, (name, run) in enumerate(zip(named, runs, strict=True))
    ]
    steps = [float(line["step"]) for run in runs for line in run.steps]
    reach = (min(steps), max(steps)) if steps else None
    chart = Chart(heading, series, axis, log=log, from_zero=from_zero, reach=reach)
    return Panel(heading, note + (_kl_ends(runs, named) if heading == _KL else ""), chart)


def _kl_ends(runs: Sequence[RunFacts], named: Sequence[str]) -> str:
    """Why the line ends before the run does: without a coefficient nothing is measured."""
    told = []
    for name, run in zip(named, runs, strict=True):
        end = run.settings.get(_KL_END)
        steps = [int(line["step"]) for line in run.steps]
        # The coefficient is 0 from the step on that has `end` steps before it.
        if end is not None and str(end).isdecimal() and steps and max(steps) > int(end):
            whose = f"{name}: " if len(runs) > 1 else ""
            told.append(f"{whose}not measured from step {int(end) + 1} on")
    return f"; {', '.join(told)}: the coefficient is 0 there ({_KL_END})" if told else ""


def _named(name: str) -> Callable[[Line], float | None]:
    return lambda line: float(line[name]) if name in line else None


def _per_episode(name: str) -> Callable[[Line], float | None]:
    def share(line: Line) -> float | None:
        return float(line[name]) / line["episodes"] if name in line and line["episodes"] else None

    return share


def wall(line: Line) -> float:
    """Seconds of a step."""
    return float(line.get("seconds_sampling", 0.0)) + float(line.get("seconds_training", 0.0))


def _throughput(line: Line) -> float | None:
    return float(line["tokens_sampled"]) / wall(line) if wall(line) else None


_KL, _KL_END = "KL to the initial policy", "train.kl_end_step"

_PANELS: tuple[tuple[str, str, str, Callable[[Line], float | None], bool, bool], ...] = (
    (_KL, "nats a token", "of what was sampled", _named("kl"), False, True),
    ("Entropy", "nats a token", "of what was sampled", _named("entropy"), False, True),
    ("Loss", "loss", "as the server sums it", _named("loss"), False, False),
    (
        "Gradient norm",
        "L2 norm",
        "before clipping, as the server says",
        _named("server/grad_norm"),
        False,
        True,
    ),
    (
        "Learning rate",
        "learning rate",
        "as the server says",
        _named("server/learning_rate"),
        False,
        True,
    ),
    ("Turns", "turns", "mean an episode", _named("turns"), False, True),
    ("Tokens sampled", "tokens", "mean an episode", _per_episode("tokens_sampled"), False, True),
    (
        "Invalid calls",
        "share of turns",
        "calls that could not be executed",
        _named("invalid_calls"),
        False,
        True,
    ),
    (
        "Cut by a budget",
        "share of episodes",
        "a token budget ended them",
        _per_episode("truncated"),
        False,
        True,
    ),
    ("Groups trained", "groups", "a step", _named("groups_trained"), False, True),
    (
        "Parity",
        "nats",
        "largest difference of a logprob between sampler and trainer",
        _named("parity_max"),
        True,
        False,
    ),
    (
        "Effective sample size",
        "share of the tokens",
        "1: the trainer's policy is the sampler's",
        _named("audit/ess"),
        False,
        True,
    ),
    ("Staleness", "optimizer steps", "mean of groups", _named("staleness"), False, True),
    ("Throughput", "tokens a second", "sampled, over the whole step", _throughput, False, True),
    ("Step time", "seconds", "sampling and training", lambda line: wall(line) or None, False, True),
)
