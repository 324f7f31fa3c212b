"""What the core tells whoever watches: plain facts, one named tuple each, no text for a screen.

What is made in every turn or for every borrow is a named tuple here and in the other files of the
core: a frozen dataclass takes two to three times as long to make.
"""

from collections.abc import Callable
from typing import NamedTuple

TRAINING = "train"
"""The stream of the groups that are trained on."""


class GroupStarted(NamedTuple):
    group: int
    task: str
    size: int
    policy: str
    policy_step: int
    stream: str = TRAINING
    """Of the admission: the numbers of groups are each stream's own."""


class TurnSampled(NamedTuple):
    group: int
    member: int
    turn: int
    tokens: int
    """Sampled tokens of this turn."""
    stream: str = TRAINING


class MemberFinished(NamedTuple):
    group: int
    member: int
    stop: str
    reward: float | None
    """None when the member failed and has no reward."""
    turns: int
    tokens: int
    tool_errors: int
    failure: str | None = None
    trace: str | None = None
    """The traceback of a failure of the task's own code."""
    interrupts: bool = False
    """That code raised KeyboardInterrupt."""
    stream: str = TRAINING


class GroupFinished(NamedTuple):
    group: int
    mean_reward: float | None
    outcome: str
    """``complete`` or the reason why the group cannot be used."""
    stream: str = TRAINING


class BorrowChanged(NamedTuple):
    """A borrow reached a state: requested, held, returning, released or quarantined."""

    key: str
    kind: str
    state: str
    id: str | int | None = None
    """What it is called where it lives, once that is known."""


RolloutEvent = GroupStarted | TurnSampled | MemberFinished | GroupFinished | BorrowChanged

Observer = Callable[[object], None]
"""Receives events of the core and of training; must not raise or block."""


def ignore(event: object) -> None:
    """The observer of those who do not watch."""
