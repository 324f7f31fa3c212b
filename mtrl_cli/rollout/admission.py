"""Admission: the facts that are fixed when a group, and each of its members, enters.

A `GroupAdmission` names the task sample and the one policy that all members and all turns of
the group are sampled from. `GroupAdmission.member` derives the `Admission` of one trajectory; a
refill differs from what it replaces in its sampling seed and in nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

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
    template: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template was told; recorded with each trajectory."""
    harness: Mapping[str, Any] = field(default_factory=dict)
    """What the task's harness is told; recorded with each trajectory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", frozen(self.template))
        object.__setattr__(self, "harness", frozen(self.harness))

    def member(self, member: int, refill: int = 0) -> "Admission":
        return Admission(group=self, member=member, refill=refill)


@dataclass(frozen=True, slots=True)
class Admission:
    """One trajectory's immutable facts."""

    group: GroupAdmission
    member: int
    refill: int

    @property
    def name(self) -> str:
        """A name that no other trajectory of the run has."""
        group = self.group
        return f"{group.stream}/g{group.group}/m{self.member}/r{self.refill}"

    def seed(self, turn: int) -> int:
        """The sampling seed of a turn (0-based)."""
        group = self.group
        return seeds.sampling(
            group.stream, group.run_seed, group.group, self.member, self.refill, turn
        )

    def turn_seeds(self) -> Callable[[int], int]:
        """`seed`, for one who asks for many turns."""
        group = self.group
        return seeds.sampling_of_turns(
            group.stream, group.run_seed, group.group, self.member, self.refill
        )


def frozen(value: Any) -> Any:
    """``value`` with every mapping, list and set in it made immutable, all the way down."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    if isinstance(value, set):
        return frozenset(value)
    return value


def thawed(value: Any) -> Any:
    """The inverse of `frozen`, for writing: plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thawed(item) for item in value]
    return value
