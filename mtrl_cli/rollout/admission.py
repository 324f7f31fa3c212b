"""Admission: the facts that are fixed when a group, and each of its members, enters.

A `GroupAdmission` names the task sample and the one policy that all members and all turns of
the group are sampled from. `GroupAdmission.member` derives the `Admission` of one trajectory; a
refill differs from what it replaces in its sampling seed and in nothing else.
"""

from dataclasses import dataclass

from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.ports import SamplingParams, TaskSample


@dataclass(frozen=True, slots=True)
class Budget:
    """Length and time limits of one trajectory."""

    turn_tokens: int
    """Most tokens sampled in one turn."""
    trajectory_tokens: int
    """Most tokens of the whole trajectory, prompt included."""
    context: int
    """The model's context window in tokens."""
    max_turns: int
    deadline: float
    """Seconds from admission to the end."""


@dataclass(frozen=True, slots=True)
class GroupAdmission:
    """A group's immutable facts."""

    run: str
    stream: str
    """``train``, ``rollout`` or an evaluation's label: keeps sampling seeds apart."""
    run_seed: int
    group: int
    size: int
    task: TaskSample
    policy: str
    policy_step: int
    """The optimizer step that made the policy."""
    sampling: SamplingParams
    budget: Budget

    def member(self, member: int, refill: int = 0) -> "Admission":
        return Admission(group=self, member=member, refill=refill)


@dataclass(frozen=True, slots=True)
class Admission:
    """One trajectory's immutable facts."""

    group: GroupAdmission
    member: int
    refill: int

    def seed(self, turn: int) -> int:
        """The sampling seed of a turn (0-based)."""
        group = self.group
        return seeds.sampling(
            group.stream, group.run_seed, group.group, self.member, self.refill, turn
        )
