"""A model that makes no tool call which its environment could execute: told once, with the cause.

Every turn of a step, or of an evaluation, falls under one of the `Kind`s by what is recorded of
it. Whole batches are judged, never the first turns that come: the shortest episodes, which are
those without a call, finish first. The turn in which an episode failed was executed: it is the
environment that failed then.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.ports import ToolSpec
from mtrl_cli.rollout.trajectory import Stop, Trajectory, Turn

ENOUGH = 20
"""Turns to judge by. Fewer are judged together with those of the next step."""
SHARE = 0.95
"""Of the turns: from here on a cause is named."""
_QUOTED = 100
"""Characters of a turn or an answer that are shown."""


class Kind(Enum):
    """What became of a turn."""

    EXECUTED = "executed"
    CUT = "cut"
    SILENT = "silent"
    UNREAD = "unread"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Judged(NamedTuple):
    """A turn's kind, and what is told as an example of it."""

    kind: Kind
    example: str


def judged(game: Trajectory, tools: Sequence[str]) -> Iterator[Judged]:
    """The turns of an episode whose tools have these names."""
    for number, turn in enumerate(game.turns):
        last = number + 1 == len(game.turns)
        if last and game.failed:
            yield Judged(Kind.EXECUTED, "")
        else:
            yield judged_turn(turn, game.stop if last else None, tools)


def judged_turn(turn: Turn, stop: Stop | None, tools: Sequence[str]) -> Judged:
    """A turn after which nothing failed; ``stop`` where it is an episode's last one."""
    if not turn.calls:
        if stop in _BUDGETS:
            return Judged(Kind.CUT, _BUDGETS[stop])
        written = any(re.search(_call_of(re.escape(name)), turn.text) for name in tools)
        return Judged(Kind.UNREAD if written else Kind.SILENT, _short(turn.text))
    wrong = next((call for call in turn.calls if call.error), None)
    if wrong is None:
        return Judged(Kind.EXECUTED, "")
    if not wrong.name:
        return Judged(Kind.UNREADABLE, _short(wrong.answer))
    if wrong.name not in tools:
        return Judged(Kind.UNKNOWN, _short(wrong.name))
    return Judged(Kind.REFUSED, _short(wrong.answer))


_BUDGETS: Mapping[Stop | None, str] = {
    Stop.TURN_TOKENS: "budget.turn_tokens",
    Stop.TRAJECTORY_TOKENS: "budget.trajectory_tokens",
    Stop.CONTEXT: "server.context",
}


def _call_of(name: str) -> str:
    """A tool's name as calls have it, in whatever form: not a word of a sentence."""
    return rf"""["'<=/]{name}\b|\b{name}["'(>]"""


class Turns:
    """Turns counted by kind, with the first example of each."""

    def __init__(self, turns: Iterable[Judged] = ()) -> None:
        self.counts: Counter[Kind] = Counter()
        self.examples: dict[Kind, str] = {}
        self.add(turns)

    def add(self, turns: Iterable[Judged]) -> None:
        for kind, example in turns:
            self.counts[kind] += 1
            self.examples.setdefault(kind, example)

    @property
    def enough(self) -> bool:
        return self.counts.total() >= ENOUGH


def advice(
    turns: Turns, tools: Sequence[str], renderer: str, *, embedded: bool = False
) -> str | None:
    """What to say of these turns: the share that failed, and the most frequent cause; None where
    too many were executed.

    Args:
        embedded: it is the model of the embedded server, whose renderer is right and which is no
            model for other words, so that only another one helps; but for what a budget has cut.
    """
    total = turns.counts.total()
    failed = total - turns.counts[Kind.EXECUTED]
    if not failed or failed < SHARE * total:
        return None
    kind = max(_CAUSES, key=lambda one: turns.counts[one])
    causes = _EMBEDDED if embedded and kind in _EMBEDDED else _CAUSES
    cause = causes[kind].format(
        example=turns.examples[kind], tools=", ".join(tools) or "none", renderer=renderer
    )
    return (
        f"{failed / total:.0%} of {total:,} turns end in no tool call that could be executed;"
        f" {turns.counts[kind]:,} of them {cause}"
    )


_CAUSES = {
    Kind.CUT: "were cut by {example} before a call ended: raise it, or ask for shorter turns in the"
    " task's prompt",
    Kind.SILENT: "hold no call, such as '{example}': let the task's prompt ask for one, and see"
    " whether the model was trained to call tools",
    Kind.UNREAD: "hold a call that server.renderer: {renderer} does not read, such as '{example}':"
    " name the renderer of the model's family",
    Kind.UNREADABLE: "hold a call that cannot be read; the model was told: '{example}'",
    Kind.UNKNOWN: "call a tool that there is not, such as '{example}'; there is: {tools}",
    Kind.REFUSED: "hold a call that is refused; the model was told: '{example}'",
}

_BLACKJACK = (
    ": the embedded model reads and writes blackjack's words alone (docs/custom-task.md); other"
    " tasks need a real model (server=tinker or server=twinkle)"
)
_EMBEDDED = {
    Kind.SILENT: "hold no call, such as '{example}'" + _BLACKJACK,
    Kind.UNREAD: "hold a call that is not written as one, such as '{example}'" + _BLACKJACK,
    Kind.UNREADABLE: _CAUSES[Kind.UNREADABLE] + _BLACKJACK,
    Kind.UNKNOWN: _CAUSES[Kind.UNKNOWN] + _BLACKJACK,
    Kind.REFUSED: _CAUSES[Kind.REFUSED] + _BLACKJACK,
}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…"


class Calling:
    """Hears batches of groups. ``tell`` hears one line a run at most."""

    def __init__(self, tell: Callable[[str], None], renderer: str, *, embedded: bool) -> None:
        self._tell = tell
        self._renderer = renderer
        self._embedded = embedded
        self._turns = Turns()
        self._told = False

    def gathered(self, groups: Iterable[Group], tools: Sequence[ToolSpec]) -> None:
        """A part of a batch; `ended` says when it is whole."""
        if not self._told:
            names = tool_names(tools)
            games = (game for group in groups for game in (*group.members, *group.failures))
            self._turns.add(turn for game in games for turn in judged(game, names))

    def ended(self, tools: Sequence[ToolSpec], more: str) -> None:
        """The batch is whole; ``more`` ends the line, if there is one."""
        if self._told or not self._turns.enough:
            return
        found = advice(self._turns, tool_names(tools), self._renderer, embedded=self._embedded)
        self.forget()
        if found is not None:
            self._told = True
            self._tell(f"{found}{more}")

    def forget(self) -> None:
        """Judge nothing of what was gathered."""
        self._turns = Turns()


def tool_names(tools: Sequence[ToolSpec]) -> list[str]:
    return [str(tool.get("function", tool).get("name")) for tool in tools]
