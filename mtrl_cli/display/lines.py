"""The sentences that more than one presenter says, as plain text."""

from collections.abc import Callable, Iterator, Sequence

from mtrl_cli.display.state import RunState
from mtrl_cli.display.text import (
    clock,
    harmless,
    policy_name,
    reward,
    short_age,
)
from mtrl_cli.display.views import GroupView, Stopping
from mtrl_cli.display.words import outcome
from mtrl_cli.training.events import Comparison, Evaluated, FolderMade

Redact = Callable[[str], str]

_OF_EVAL = ("eval", "rival")
"""Labels of ``mtrl eval``: the policy that was asked for, and the one that it is compared with."""


_HARDLY = 0.01
"""The share of an evaluation's games up to which failed ones are not worth a note."""

_ANEW = "at the beginning: no later step has a training state (train.checkpoint_every)"


def beginning_line(made: FolderMade) -> str:
    """Where a run is, and where an attempt of it goes on."""
    line = f"run {harmless(made.run)} in {harmless(made.folder)}"
    if made.attempt == 1:
        return line
    where = f"after step {made.step}" if made.step else _ANEW
    return f"{line}: attempt {made.attempt} goes on {where}"


def group_task(group: GroupView) -> str:
    """What a group plays, as its line names it."""
    return harmless(group.task, 24)


def group_line(group: GroupView, now: float, groups: int = 0, longest: int = 0) -> str:
    """One group that has ended, of ``groups`` groups in all, as far as that is known; what they
    play takes ``longest`` characters at most."""
    rewards = group.rewards
    mean = sum(rewards) / len(rewards) if rewards else None
    number = f"{group.group:>{len(str(max(groups - 1, 0)))}}"
    told = (
        f"group {number} {group_task(group):<{longest}} | v{group.policy_step}"
        f" | {group.done}/{group.size} | reward {reward(mean, 2):>5} | {group.tokens:>6,} tokens"
        f" | {short_age(now - group.started)}"
    )
    if group.retries:
        told += f" | {group.retries} retried"
    if group.outcome not in (None, "complete"):
        told += f" | {harmless(outcome(group.outcome or ''))}"
    return told


def evaluated_line(result: Evaluated) -> str:
    """An evaluation's outcome; intervals and shares are the summary's."""
    line = (
        f"evaluation {evaluation_name(result.label, result.policy)}:"
        f" {with_error(result.mean, result.se)} over {games_of(result)}"
    )
    return f"{line}, {compared(result.versus)}" if result.versus is not None else line


def games_of(result: Evaluated) -> str:
    """How many games its figures are of, and how many were left out."""
    left = f" ({result.failed:,} failed)" if result.failed else ""
    return counted(result.games, "game") + left


def left_out(games: Sequence[tuple[str, int, int]]) -> str | None:
    """What to say beside figures from which games are left out because they failed; None where
    these are hardly any.

    Args:
        games: of each evaluation what it is called, how many of its games failed, and how many
            have a reward.
    """
    if all(failed <= _HARDLY * (failed + scored) for _, failed, scored in games):
        return None
    each = (f"{name} {failed:,} of {failed + scored:,}".strip() for name, failed, scored in games)
    return (
        f"games that failed are left out: {', '.join(each)}; a policy that fails where it would"
        " have lost looks better than it is: mend what failed, then evaluate again"
    )


def evaluation_name(label: str, policy: str) -> str:
    """Which evaluation, in words: of a training its moment, of ``mtrl eval`` its policy."""
    return f"of {harmless(policy_name(policy))}" if label in _OF_EVAL else harmless(label)


def with_error(mean: float, se: float | None, sign: str = "") -> str:
    """A mean and its standard error, where it has one."""
    return f"{mean:{sign}z.3f}" + ("" if se is None else f" ± {se:.3f}")


def interval(bounds: Sequence[float] | None, sign: str = "") -> str:
    """A 95 % confidence interval in brackets; nothing where there is none."""
    return "" if bounds is None else f" (95 % {bounds[0]:{sign}z.3f} to {bounds[1]:{sign}z.3f})"


def compared(versus: Comparison) -> str:
    """The mean of the differences, game by game."""
    other = policy_name(versus.against) if versus.label in _OF_EVAL else versus.label
    return f"{with_error(versus.mean, versus.se, '+')} against {harmless(other)}"


def progress_line(state: RunState) -> str:
    """An evaluation in progress."""
    evaluation = state.evaluation
    assert evaluation is not None
    games = f"/{evaluation.games:,}" if evaluation.games else ""
    so_far = f", {reward(evaluation.mean)} so far" if evaluation.mean is not None else ""
    label = "" if evaluation.label in _OF_EVAL else f" {harmless(evaluation.label)}"
    return f"evaluation{label}: {evaluation.done:,}{games} games{so_far}"


def etas(state: RunState, now: float) -> Iterator[str]:
    """When the run is over, and what that leaves out; then, when the sweep is, of which it is one.
    Nothing where it is not known."""
    expected, place = state.eta(now), state.plan.place
    if expected is None:
        return
    more = " + evaluation" if expected.unmeasured else ""
    yield f"{'run ' if place else ''}ETA {clock(expected.seconds)}{more}"
    if place is None or more:
        return
    rest = place.rest(now - state.started + expected.seconds, expected.seconds)
    if rest is not None:
        yield f"sweep ETA {clock(rest)}"


def stopping_line(state: RunState, stopping: Stopping) -> str:
    """What a stop request does, and what the next one would do."""
    cause = harmless(stopping.cause)
    if stopping.stage >= 2:
        return (
            f"stopping now ({cause}): work in flight is dropped, what was borrowed is returned."
            "  Again: leave at once"
        )
    return (
        f"stopping ({cause}): nothing new starts; {settling(state)}"
        f" (at most {state.plan.drain_timeout:.0f}s).  Again: drop them"
    )


def settling(state: RunState) -> str:
    """What a drain waits for."""
    groups = len(state.groups)
    if state.evaluation is not None or not groups:
        return "issued work settles"
    return "1 group settles" if groups == 1 else f"{groups} groups settle"


def counted(number: int, what: str) -> str:
    """A count in words: ``1 group``, ``2,000 groups``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def alive_line(state: RunState, now: float) -> str:
    """A sign of life when nothing has ended for a while."""
    waits = f"; {waiting_line(state.waits)}" if state.waits else ""
    return f"alive: {_in_its_phase(state, now)}{waits}"


def doing(state: RunState, now: float) -> str:
    """What a run does at the moment."""
    stopping = "" if state.stopping is None else f"stopping ({harmless(state.stopping.cause)}); "
    evaluates = state.evaluation is not None
    waits = f"; {waiting_line(state.waits)}" if state.waits else ""
    phase = progress_line(state) if evaluates else _in_its_phase(state, now)
    return f"{stopping}{phase}{waits}"


def _in_its_phase(state: RunState, now: float) -> str:
    groups = f", {counted(len(state.groups), 'group')} in flight" if state.groups else ""
    return f"{harmless(state.phase)} for {clock(now - state.phase_since)}{groups}"


def waiting_line(waits: str) -> str:
    """Why nothing moves, in the server's words."""
    return f"waiting for the server: {harmless(waits)}"
