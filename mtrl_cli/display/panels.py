"""The live screen's parts, drawn from the state: a head of five lines, and a table of groups.

The stop message stands in the head, since a terminal cuts what is too tall at the bottom. Lines
are at most as wide as the terminal; what does not fit is left out from the right.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mtrl_cli.display import lines
from mtrl_cli.display.columns import stale
from mtrl_cli.display.state import RunState
from mtrl_cli.display.text import (
    clock,
    compact,
    figure,
    gap,
    harmless,
    policy_name,
    reward,
    run_tail,
    short_age,
)
from mtrl_cli.display.views import GroupView
from mtrl_cli.display.words import outcome
from mtrl_cli.training.events import TREND_KEPT

HEAD_LINES = 8
"""Lines of a screen that are not rows of the table: the head, a blank, the table's head, the
line that says how many groups are not shown."""

TREND = 10
"""Steps whose mean reward is told, and against those before, its change."""

WIDE = 110
"""From this width on the table has all its columns."""


_LENT = {"env": "environments", "sandbox": "sandboxes", "harness": "harnesses"}
"""What trajectories hold, in words. What the run holds from its beginning to its end (a server, a
model on it) is no news."""


@dataclass(frozen=True)
class Glyphs:
    """What bars and trends are drawn with."""

    full: str
    empty: str
    line: str
    trend: str


UNICODE = Glyphs(full="█", empty="░", line="━", trend="▁▂▃▄▅▆▇█")
ASCII = Glyphs(full="#", empty=".", line="=", trend="_.-=+*#")


def head(state: RunState, now: float, width: int, glyphs: Glyphs, redact: lines.Redact) -> Text:
    """Name and time, progress, what Ctrl-C does, reward, throughput."""
    rows = [
        _ends(_names(state), clock(now - state.started), width, "bold"),
        _progress(state, now, width, glyphs),
        _stop_line(state, now),
        Text(_fit(_reward_parts(state, glyphs), width)),
        Text(_fit(_throughput_parts(state, now), width), style="dim"),
    ]
    for row in rows:
        row.plain = redact(row.plain)
        row.truncate(width, overflow="ellipsis")
    return Text("\n").join(rows)


def group_table(
    state: RunState,
    now: float,
    width: int,
    rows: int,
    glyphs: Glyphs,
    redact: lines.Redact,
    tall: int = 0,
) -> Group:
    """The groups in flight that have begun, oldest first, as many as there is room for; the
    others are counted.

    Where fewer than ``tall`` are in flight, the latest ones that have ended stay in the table, so
    that it stands between two steps, too, and is as tall as it was.
    """
    groups = list(state.groups.values())
    begun = [group for group in groups if group.begun]
    told = _not_listed(len(begun[rows:]), len(groups) - len(begun), others=bool(begun))
    listed = begun[:rows]
    spare = tall - len(listed)
    ended = list(state.lately)[-spare:] if spare > 0 else []
    if not listed and not ended:
        return Group(Text(told))
    wide = width >= WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, right in _columns(wide):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for group in sorted([*ended, *listed], key=lambda one: one.group):
        cells = (Text(redact(cell)) for cell in _cells(group, now, wide, glyphs))
        in_flight = "yellow" if group.retries else ""
        table.add_row(*cells, style=in_flight if group.outcome is None else "dim")
    return Group(table, Text(told)) if told or ended else Group(table)


def _not_listed(begun: int, starting: int, *, others: bool) -> str:
    """How many groups the table leaves out."""
    if begun:
        more = f", {starting:,} starting" if starting else ""
        return lines.counted(begun, "more group") + more
    what = "more group" if others else "group"
    return f"{lines.counted(starting, what)} starting" if starting else ""


def _names(state: RunState) -> str:
    place = f"{state.plan.place.number}/{state.plan.place.runs}" if state.plan.place else ""
    name = harmless(run_tail(Path(state.folder).name), 24) if state.folder else ""
    run = f"  run {': '.join(filter(None, (place, name)))}" if place or name else ""
    policy = f"  policy {harmless(policy_name(state.policy), 24)}" if state.policy else ""
    return f"mtrl {harmless(state.plan.title)}{run}{policy}"


def _progress(state: RunState, now: float, width: int, glyphs: Glyphs) -> Text:
    ending = [*lines.etas(state, now)]
    evaluation = state.evaluation
    if evaluation is not None:
        share = evaluation.done / evaluation.games if evaluation.games else None
        return _bar(lines.progress_line(state), share, ending, width, glyphs)
    if state.plan.total_groups:
        done = len(state.finished_groups)
        label = f"groups {done}/{state.plan.total_groups}"
        return _bar(label, done / state.plan.total_groups, [], width, glyphs)
    if not state.steps:
        return Text(harmless(state.phase))
    label = f"step {state.step}/{state.steps} {harmless(state.phase)}"
    return _bar(label, state.step / state.steps, ending, width, glyphs)


def _bar(
    label: str, share: float | None, ending: Sequence[str], width: int, glyphs: Glyphs
) -> Text:
    if share is None:
        return Text(label)
    tail = _fit([f" {min(share, 1):4.0%}", *ending], width - len(label) - 1)
    room = max(width - len(label) - 1 - len(tail), 0)
    filled = round(room * min(share, 1))
    bar = Text(label + " ")
    bar.append(glyphs.line * filled, "green")
    bar.append(" " * (room - filled))
    return bar.append(tail)


def _stop_line(state: RunState, now: float) -> Text:
    stopping = state.stopping
    if stopping is None and state.waits:
        return Text(lines.waiting_line(state.waits), "yellow")
    if stopping is None and state.plan.watched:
        return Text("q or Ctrl-C: stop watching; the run goes on", style="dim")
    if stopping is None:
        return Text("Ctrl-C: let issued work settle, then stop", style="dim")
    left = max(state.plan.drain_timeout - (now - stopping.since), 0)
    cause = harmless(stopping.cause)
    if stopping.stage >= 2:
        return Text(f"STOPPING NOW ({cause}): returning what was borrowed.  Again: leave", "red")
    settles = lines.settling(state)
    told = f"STOPPING ({cause}): {settles}, none starts, {left:.0f}s left.  Again: drop them"
    return Text(told, "yellow")


def _reward_parts(state: RunState, glyphs: Glyphs) -> Iterable[str]:
    rewards = state.rewards
    if not rewards:
        yield from (lines.evaluated_line(result) for result in state.evaluations[-1:])
        return
    yield f"reward {reward(rewards[-1])} {sparkline(rewards[-TREND_KEPT:], glyphs.trend)}"
    if len(rewards) >= TREND:
        change = state.trend(TREND)
        told = "" if change is None else f" ({change:+z.3f})"
        yield f"last {TREND} {reward(sum(rewards[-TREND:]) / TREND)}{told}"
    metrics = state.metrics
    if "pass_rate" in metrics:
        yield f"passed {metrics['pass_rate']:.0%}"
    yield from (f"{name} {figure(metrics[name])}" for name in ("kl",) if name in metrics)
    if "parity_max" in metrics:
        yield f"parity {gap(metrics['parity_max'])}"
    if "group_std" in metrics:
        yield f"group std {figure(metrics['group_std'])}"
    if "invalid_calls" in metrics:
        yield f"invalid {metrics['invalid_calls']:.1%}"
    yield from (
        f"{name} {figure(metrics[name])}" for name in ("entropy", "loss") if name in metrics
    )


def _throughput_parts(state: RunState, now: float) -> Iterable[str]:
    limit = f"/{state.plan.concurrency}" if state.plan.concurrency else ""
    yield f"busy {min(state.busy, state.plan.concurrency or state.busy)}{limit}"
    yield f"gen {compact(state.rates.tokens_per_second(now))} tok/s"
    yield f"traj {compact(state.rates.episodes_per_minute(now))}/min"
    yield f"tokens {compact(state.tokens)}"
    yield from stale(state.metrics)
    if state.failures:
        yield f"errors {state.failures / (state.failures + state.episodes):.1%}"
    if state.retries:
        yield f"retries {state.retries:,}"
    borrowed = state.borrowed_by_kind()
    yield from (f"{name} {borrowed[kind]:,}" for kind, name in _LENT.items() if borrowed.get(kind))


def _columns(wide: bool) -> Sequence[tuple[str, bool]]:
    """The names of the columns, and which are numbers."""
    narrow = (
        ("group", True),
        ("task", False),
        ("policy", True),
        ("done", False),
        ("reward", True),
        ("tokens", True),
        ("age", True),
        ("phase", False),
    )
    if not wide:
        return narrow
    return (*narrow[:5], ("std", True), ("turns", True), *narrow[5:], ("note", False))


def _cells(group: GroupView, now: float, wide: bool, glyphs: Glyphs) -> list[str]:
    rewards = group.rewards
    mean = sum(rewards) / len(rewards) if rewards else None
    cells = [
        str(group.group),
        harmless(group.task, 24 if wide else 20),
        f"v{group.policy_step}",
        f"{group.done}/{group.size} {_members(group, glyphs)}",
        reward(mean, 2),
        f"{group.tokens:,}",
        short_age((now if group.ended is None else group.ended) - group.started),
        group.phase,
    ]
    if not wide:
        return cells
    turns = f"{group.turns / group.size:.1f}"
    return [*cells[:5], reward(_spread(rewards), 2), turns, *cells[5:], harmless(_note(group), 40)]


def _note(group: GroupView) -> str:
    """What went wrong with it."""
    if group.outcome not in (None, "complete"):
        return outcome(group.outcome or "")
    return f"{group.retries} retried: {group.note}" if group.retries else ""


def _members(group: GroupView, glyphs: Glyphs) -> str:
    """A bar with one mark a member, as far as it is short."""
    room = min(group.size, 8)
    filled = group.done * room // group.size
    return glyphs.full * filled + glyphs.empty * (room - filled)


def _spread(rewards: Sequence[float]) -> float | None:
    if len(rewards) < 2:
        return None
    mean = sum(rewards) / len(rewards)
    return float((sum((value - mean) ** 2 for value in rewards) / len(rewards)) ** 0.5)


def sparkline(values: Sequence[float], marks: str) -> str:
    """A trend in one mark a value, scaled to the values' own range."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    return "".join(marks[round((value - low) / span * (len(marks) - 1))] for value in values)


def _ends(left: str, right: str, width: int, style: str) -> Text:
    """``left`` and ``right`` at the two ends of a line."""
    return Text(left + " " * max(width - len(left) - len(right), 1) + right, style=style)


def _fit(parts: Iterable[str], width: int) -> str:
    """As many whole parts as fit."""
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        if len(longer) > width and line:
            break
        line = longer
    return line
