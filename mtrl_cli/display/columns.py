"""The line of a step: columns that stay where they are for a whole run.

    step   2/150 |  2.2s | reward -0.250 | passed  35% | trained 19/20 | kl  0.0037 | …

Which columns there are follows from the run and from the width, never from what one step has: a
figure that a step lacks is ``-``. The ones that matter most stand first, and a terminal shows as
many as fit. Facts that most steps do not have come after them, in words.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mtrl_cli.display.state import RunState
from mtrl_cli.display.text import clock, compact, fitted, gap, harmless, policy_name
from mtrl_cli.display.words import outcomes
from mtrl_cli.display.wrapping import HANGING, cells, glued, wrapped
from mtrl_cli.training.events import EQUAL_REWARDS

NOTHING = "-"
_BETWEEN = " | "


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a step, right-aligned in ``width`` characters."""

    word: str
    figure: str
    width: int
    unit: str = ""

    def __str__(self) -> str:
        unit = self.unit if self.figure != NOTHING else " " * len(self.unit)
        word = f"{self.word} " if self.word else ""
        return f"{word}{self.figure:>{self.width}}{unit}"


def step_lines(state: RunState, now: float, width: int | None = None) -> list[str]:
    """One finished step: a line, in a ``width`` with as many columns as fit. What failed is told
    in any width, on a second line if need be."""
    line = ""
    for column in _columns(state, now):
        longer = f"{line}{_BETWEEN}{column}" if line else str(column)
        if width is not None and line and cells(longer) > width:
            break
        line = longer
    for fact, grave in _facts(state.metrics):
        longer = f"{line} {glued(f'{_BETWEEN.lstrip()}{fact}')}"
        if grave or width is None or cells(longer) <= width:
            line = longer
    return wrapped(line.rstrip(), width, HANGING)


def _columns(state: RunState, now: float) -> Iterator[Column]:
    """All columns of the run, the ones that matter most first."""
    metrics, plan = state.metrics, state.plan
    steps = len(str(state.steps))
    yield Column("step", f"{state.step:>{steps}}/{state.steps}", 2 * steps + 1)
    yield Column("", fitted(state.step_seconds, 4, 1), 4, "s")
    yield Column("reward", _known(metrics, "reward", lambda it: fitted(it, 6, 3)), 6)
    yield Column("passed", _known(metrics, "pass_rate", lambda it: f"{it:.0%}"), 4)
    groups = len(str(plan.groups_per_step))
    trained = _known(metrics, "groups_trained", lambda it: f"{it:.0f}/{metrics['groups']:.0f}")
    yield Column("trained", trained, 2 * groups + 1)
    if "kl" in plan.figures:
        yield Column("kl", _known(metrics, "kl", lambda it: fitted(it, 7, 4)), 7)
    if "parity" in plan.figures:
        yield Column("parity", _known(metrics, "parity_max", gap), 7)
    yield Column("gen", compact(_generated(state, now)), 5, " tok/s")
    yield Column("tokens", compact(state.tokens), 5)
    yield Column("entropy", _known(metrics, "entropy", lambda it: fitted(it, 6, 3)), 6)
    yield Column("loss", _known(metrics, "loss", lambda it: fitted(it, 7, 4)), 7)
    eta = state.eta(now)
    known = eta is not None and not eta.unmeasured
    yield Column("eta", clock(eta.seconds) if eta is not None and known else NOTHING, 8)
    yield Column("", harmless(policy_name(state.policy or NOTHING), 24), 11)


def _known(metrics: Mapping[str, float], name: str, told: Callable[[float], str]) -> str:
    return told(metrics[name]) if name in metrics else NOTHING


def _facts(metrics: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """What only some steps have, and whether it may not be left out. Groups of equal rewards may:
    that not all were trained stands in a column."""
    if failed := int(metrics.get("failed_episodes", 0)):
        yield f"failed {failed:,}", True
    skipped = {
        name.removeprefix("skipped/"): int(count)
        for name, count in metrics.items()
        if name.startswith("skipped/") and count
    }
    alike = {name: skipped.pop(name) for name in (EQUAL_REWARDS,) if name in skipped}
    for counts in (skipped, alike):
        if counts:
            yield outcomes(counts), counts is skipped
    yield from ((told, False) for told in stale(metrics))


def stale(metrics: Mapping[str, float]) -> Iterator[str]:
    """Steps that the policies of a step's groups were behind: in the mean, and at most. Nothing
    where none was."""
    mean = metrics.get("staleness", 0.0)
    if most := metrics.get("staleness_max", mean):
        yield f"stale {mean:.1f}/{most:.0f}"


def _generated(state: RunState, now: float) -> float:
    """Sampled tokens a second: of the step's sampling, where the run measured it; of the whole
    step, where its groups were sampled while earlier ones trained; of the last seconds, where they
    were sampled before it began, as during an evaluation: one episode took longer than it."""
    metrics = state.metrics
    sampled, seconds = (metrics.get(key) for key in ("tokens_sampled", "seconds_sampling"))
    if seconds is not None and metrics.get("staleness_max"):
        seconds += metrics.get("seconds_training", 0.0)
    if not sampled or not seconds or seconds < metrics.get("seconds_policy", 0.0):
        return state.rates.tokens_per_second(now)
    return sampled / seconds
