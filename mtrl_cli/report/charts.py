"""The small charts over the steps: the same ones for one run and for several over each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtrl_cli.report.facts import Line, RunFacts
from mtrl_cli.report.learning import lines_of
from mtrl_cli.report.naming import Setting
from mtrl_cli.report.svg import Chart, Point, number

LEVEL = 1e-4
"""Up to this share of its size a figure may move and is still called the same."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its heading and what it shows."""

    heading: str
    note: str
    chart: Chart


def panels(settings: Sequence[Setting]) -> tuple[list[Panel], list[str]]:
    """The small charts, and those that are level, as ``Learning rate 0.001``; what no run has a
    figure for is left out."""
    made = [
        _panel(settings, heading, axis, note, value, log=log, from_zero=zero)
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
    settings: Sequence[Setting],
    heading: str,
    axis: str,
    note: str,
    value: Callable[[Line], float | None],
    *,
    log: bool,
    from_zero: bool,
) -> Panel:
    def points_of(run: RunFacts) -> list[Point]:
        return [(float(line["step"]), y) for line in run.steps if (y := value(line)) is not None]

    series = [
        line
        for colour, setting in enumerate(settings)
        for line in lines_of(setting, colour, points_of)
    ]
    steps = [float(line["step"]) for one in settings for run in one.runs for line in run.steps]
    reach = (min(steps), max(steps)) if steps else None
    chart = Chart(heading, series, axis, log=log, from_zero=from_zero, reach=reach)
    return Panel(heading, note + (_kl_ends(settings) if heading == _KL else ""), chart)


def _kl_ends(settings: Sequence[Setting]) -> str:
    """Why the line ends before the run does: without a coefficient nothing is measured."""
    ends: dict[int, list[str]] = {}
    for setting in settings:
        for name, run in zip(setting.named, setting.runs, strict=True):
            end = run.settings.get(_KL_END)
            steps = [int(line["step"]) for line in run.steps]
            # The coefficient is 0 from the step on that has `end` steps before it.
            if end is not None and str(end).isdecimal() and steps and max(steps) > int(end):
                ends.setdefault(int(end) + 1, []).append(name)
    runs = sum(len(setting.runs) for setting in settings)
    told = [
        ("" if len(whose) == runs else f"{', '.join(whose)}: ")
        + f"not measured from step {step} on"
        for step, whose in ends.items()
    ]
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
    return line.get("tokens_sampled", 0.0) / wall(line) if wall(line) else None


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
