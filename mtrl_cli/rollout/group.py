"""One group: G members of the same task sample under the same policy, played together.

A member that fails (see `trajectory.FAILED`) is never scored. What happens instead:

- ``refill``: it is played again under the same policy, task seed and member index with a new
  sampling seed, at most ``max_refills`` times; then the group fails.
- ``shrink``: it is left out; below ``floor`` members the group fails.
- ``drop``: the group fails.

A permanent failure is not refilled: trying again cannot help. The group is complete, and is
returned, when all its members are terminal; a failed group comes back too, with its reason.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.episode import Parts, play
from mtrl_cli.rollout.events import GroupFinished, GroupStarted
from mtrl_cli.rollout.slots import Slots
from mtrl_cli.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class FailureRule:
    """`group.on_failure` with its bounds."""

    on_failure: Literal["refill", "shrink", "drop"] = "refill"
    max_refills: int = 2
    floor: int = 2


@dataclass(frozen=True, slots=True)
class Group:
    """A finished group. ``members`` are in index order and hold no failed trajectory.

    ``failures`` are the failed attempts, also those that a refill made good. ``failed`` is the
    counted reason why the group as a whole cannot be used, None for a complete group.
    """

    admission: GroupAdmission
    members: tuple[Trajectory, ...]
    failures: tuple[Trajectory, ...]
    failed: str | None


async def play_group(
    admission: GroupAdmission, parts: Parts, slots: Slots, rule: FailureRule
) -> Group:
    """Play all members, at most as many at once as ``slots`` has room for in all groups."""
    parts.observer(
        GroupStarted(
            admission.group,
            admission.task.id,
            admission.size,
            admission.policy,
            admission.policy_step,
            admission.stream,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        attempts = [
            tasks.create_task(_play_member(admission, member, parts, slots, rule))
            for member in range(admission.size)
        ]
    group = _settle(admission, [attempt for task in attempts for attempt in task.result()], rule)
    rewards = [member.reward for member in group.members if member.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    outcome = group.failed or "complete"
    parts.observer(GroupFinished(admission.group, mean, outcome, admission.stream))
    return group


async def _play_member(
    admission: GroupAdmission,
    member: int,
    parts: Parts,
    slots: Slots,
    rule: FailureRule,
) -> list[Trajectory]:
    """All attempts at one member; the last one counts."""
    attempts: list[Trajectory] = []
    refills = rule.max_refills if rule.on_failure == "refill" else 0
    for refill in range(refills + 1):
        async with slots:
            attempts.append(await play(admission.member(member, refill), parts))
        if not attempts[-1].failed or attempts[-1].permanent:
            break
    return attempts


def _settle(admission: GroupAdmission, attempts: list[Trajectory], rule: FailureRule) -> Group:
    members = tuple(attempt for attempt in attempts if not attempt.failed)
    failures = tuple(attempt for attempt in attempts if attempt.failed)
    needed = min(rule.floor, admission.size) if rule.on_failure == "shrink" else admission.size
    failed = None if len(members) >= needed else _reason(failures)
    return Group(admission, members, failures, failed)


def _reason(failures: tuple[Trajectory, ...]) -> str:
    """The most frequent reason among the failed attempts."""
    counts = Counter(failure.refusal or failure.stop.value for failure in failures)
    return counts.most_common(1)[0][0]
