"""What a screen shows of one group, one evaluation, one stop."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class MemberView:
    reward: float | None
    stop: str
    turns: int
    tokens: int


@dataclass(slots=True)
class GroupView:
    """One group of trajectories, in flight or finished."""

    group: int
    task: str
    policy: str
    policy_step: int
    size: int
    started: float
    tokens: int = 0
    turns: int = 0
    retries: int = 0
    note: str | None = None
    members: dict[int, MemberView] = field(default_factory=dict)
    ended: float | None = None
    outcome: str | None = None

    @property
    def done(self) -> int:
        return len(self.members)

    @property
    def begun(self) -> bool:
        """Whether anything of it has happened yet."""
        return bool(self.turns or self.members or self.retries)

    @property
    def rewards(self) -> list[float]:
        found = (member.reward for member in self.members.values())
        return [value for value in found if value is not None]

    @property
    def phase(self) -> str:
        if self.outcome is not None:
            return "done" if self.outcome == "complete" else "ended"
        if self.done == self.size:
            return "ending"
        return "rolling" if self.turns else "starting"


@dataclass(slots=True)
class EvaluationView:
    """An evaluation in progress."""

    label: str
    games: int
    started: int = 0
    done: int = 0
    total_reward: float = 0.0
    rewarded: int = 0
    mixed: bool = False
    """Games of several policies."""

    @property
    def mean(self) -> float | None:
        """The mean reward so far."""
        if self.mixed or not self.rewarded:
            return None
        return self.total_reward / self.rewarded


@dataclass(frozen=True, slots=True)
class Stopping:
    """A stop in progress. ``stage`` 1 drains, 2 drops."""

    stage: int
    cause: str
    since: float
