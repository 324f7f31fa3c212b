"""`training_groups`: what of the finished groups may be trained, and why the rest may not.

A group passes when it is complete and every rule of the token and group contract holds for
it once more, from the finished data: each member index exactly once (fewer only where
``on_failure: shrink`` left members out), one policy that is not too old, logprobs aligned with
the sampled tokens, a finite reward, at least one trained token. What does not pass is counted by
reason; nothing is repaired.

Truncated members (a token budget ended them) follow ``group.on_truncated``: ``penalize`` keeps
them with their unfinished reward, ``mask`` leaves them out of the loss and of the baseline.

Skip rules (``train.skip``) leave whole groups out, also of the KL term: ``constant_reward`` those
whose rewards are all equal (DAPO's dynamic sampling without the refill, arXiv:2503.14476, section
3.2; without the rule such a group has advantage 0 and keeps its KL term), ``model_truncated``
those that have a truncated member (an overlong answer says nothing of the group's others; DAPO's
overlong filtering, for the group). Skipped or not, a group is consumed and counted.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.trajectory import Trajectory
from mtrl_cli.training.step.advantages import equal_rewards

OnTruncated = Literal["penalize", "mask"]
SkipRule = Literal["constant_reward", "model_truncated"]


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What a group must satisfy to be trained at optimizer step ``step``."""

    step: int
    max_policy_lag: int = 0
    on_truncated: OnTruncated = "penalize"
    skip: frozenset[SkipRule] = frozenset()
    least_members: int | None = None
    """With ``on_failure: shrink``, the floor; None asks for every member."""


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """One group fit for training: its members in index order, and their rewards."""

    group: int
    members: tuple[Trajectory, ...]
    rewards: tuple[float, ...]

    @property
    def constant_reward(self) -> bool:
        """All rewards equal: the group has no advantage to learn from, only a KL term."""
        return equal_rewards(self.rewards)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The groups of one step, sorted by group id; ``skipped`` counts the others by reason."""

    groups: tuple[TrainingGroup, ...]
    skipped: Mapping[str, int]
    outcomes: Mapping[int, str]
    """Per group id: ``trained``, ``constant_reward`` or the reason why it was skipped."""

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """All trainable members, sorted by group and member."""
        return [member for group in self.groups for member in group.members]


def training_groups(groups: Iterable[Group], rules: GroupRules) -> TrainingBatch:
    """Check finished groups and keep what can be trained. A group id twice is counted too."""
    kept: dict[int, TrainingGroup] = {}
    outcomes: dict[int, str] = {}
    for group in sorted(groups, key=lambda group: group.admission.group):
        key = group.admission.group
        reason = "duplicate_group" if key in outcomes else _flaw(group, rules)
        if reason is None:
            fit = _fit(group, rules)
            reason = "constant_reward" if fit.constant_reward else "trained"
            if reason not in rules.skip:
                kept[key] = fit
        outcomes[key] = reason
    skipped = Counter(reason for reason in outcomes.values() if reason != "trained")
    return TrainingBatch(tuple(kept.values()), skipped, outcomes)


def _flaw(group: Group, rules: GroupRules) -> str | None:
    if group.failed is not None:
        return group.failed
    admission = group.admission
    indices = [member.admission.member for member in group.members]
    least = admission.size if rules.least_members is None else rules.least_members
    if len(set(indices)) != len(indices) or not set(indices) <= set(range(admission.size)):
        return "membership"
    if len(indices) < min(least, admission.size):
        return "membership"
    if any(member.admission.group != admission for member in group.members):
        return "policy_mismatch"
    if rules.step - admission.policy_step > rules.max_policy_lag:
        return "stale"
    for member in group.members:
        if (flaw := _member_flaw(member)) is not None:
            return flaw
    usable = _usable(group, rules)
    if "model_truncated" in rules.skip and any(member.truncated for member in group.members):
        return "model_truncated"
    if not any(member.tokens.sampled_count for member in usable):
        return "model_truncated" if len(usable) < len(group.members) else "no_trained_token"
    return None


def _member_flaw(member: Trajectory) -> str | None:
    tokens = member.tokens
    sampled = sum(span.end - span.start for span, _ in tokens.sampled_spans())
    if sampled != tokens.sampled_count:
        return "misaligned"
    if not all(math.isfinite(logprob) for logprob in tokens.sampled_logprobs):
        return "bad_logprobs"
    if member.reward is None or not math.isfinite(member.reward):
        return "bad_reward"
    return None


def _usable(group: Group, rules: GroupRules) -> tuple[Trajectory, ...]:
    if rules.on_truncated == "penalize":
        return group.members
    return tuple(member for member in group.members if not member.truncated)


def _fit(group: Group, rules: GroupRules) -> TrainingGroup:
    members = sorted(_usable(group, rules), key=lambda member: member.admission.member)
    rewards = tuple(member.reward for member in members if member.reward is not None)
    return TrainingGroup(group.admission.group, tuple(members), rewards)
