"""What the core tells whoever watches: plain facts, one dataclass each, no text for a screen."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupStarted:
    group: int
    task: str
    size: int
    policy: str
    policy_step: int


@dataclass(frozen=True, slots=True)
class TurnSampled:
    group: int
    member: int
    turn: int
    tokens: int
    """Sampled tokens of this turn."""


@dataclass(frozen=True, slots=True)
class MemberFinished:
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


@dataclass(frozen=True, slots=True)
class GroupFinished:
    group: int
    mean_reward: float | None
    outcome: str
    """``complete`` or the reason why the group cannot be used."""


@dataclass(frozen=True, slots=True)
class BorrowChanged:
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
