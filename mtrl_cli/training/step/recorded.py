"""A committed step's batch, built again from the run's files.

The trajectory file of a step holds what was sampled, its commit what became of each group, the
configuration how advantages are computed. Together they give the training batch back, by the same
functions that made it, with the reference logprobs of a KL penalty, which the file holds too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mtrl_cli.rollout.events import TRAINING
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import Sample, TaskSample
from mtrl_cli.rollout.tokens import SpanKind, TokenSequence
from mtrl_cli.rollout.trajectory import Stop, Trajectory
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.step.advantages import group_advantages
from mtrl_cli.training.step.batch import KlPenalty
from mtrl_cli.training.step.groups import TrainingBatch, TrainingGroup

_TRAINABLE = ("trained", "constant_reward")


def recorded_batch(
    plan: TrainingPlan, records: Iterable[Mapping[str, Any]], outcomes: Mapping[int, str]
) -> TrainingBatch:
    """The trainable groups of a step, sorted by group and member.

    Args:
        plan: of the run's configuration.
        records: the lines of the step's trajectory file.
        outcomes: group → outcome, as the step's commit has them.
    """
    members: dict[int, list[Trajectory]] = {}
    for record in records:
        outcome = outcomes.get(record["group"])
        if outcome in _TRAINABLE and outcome not in plan.skip:
            trajectory = recorded_trajectory(plan, record)
            left_out = trajectory.truncated and plan.on_truncated == "mask"
            if not trajectory.failed and not left_out:
                members.setdefault(record["group"], []).append(trajectory)
    groups = tuple(_group(group, members[group]) for group in sorted(members))
    skipped = {reason: 0 for reason in outcomes.values() if reason != "trained"}
    for reason in outcomes.values():
        if reason in skipped:
            skipped[reason] += 1
    return TrainingBatch(groups, skipped, dict(outcomes))


def recorded_trajectory(plan: TrainingPlan, record: Mapping[str, Any]) -> Trajectory:
    """One line of a trajectory file, as it was played; without its turns' texts."""
    task = TaskSample(record["task"]["id"], record["task"]["seed"])
    policy = PolicySnapshot(record["policy"], record["policy_step"])
    admission = plan.admission(record["run"], TRAINING, record["group"], task, policy)
    return Trajectory(
        admission.member(record["member"], record["refill"]),
        _tokens(record),
        opening=record["opening"],
        stop=Stop(record["stop"]),
        reward=record["reward"],
        failure=record["failure"],
        refusal=record["refusal"],
    )


def recorded_advantages(plan: TrainingPlan, batch: TrainingBatch) -> dict[tuple[int, int], float]:
    """(group, member) → the group-relative advantage, before weights and without a KL term."""
    return {
        (group.group, member.admission.member): float(value)
        for group in batch.groups
        for member, value in zip(
            group.members, group_advantages(group.rewards, plan.advantage), strict=True
        )
    }


def recorded_penalty(
    plan: TrainingPlan, records: Iterable[Mapping[str, Any]], batch: TrainingBatch, step: int
) -> KlPenalty | None:
    """The KL penalty of the step (counted from 1); None where there was none, or where a record
    of an earlier version lacks the reference logprobs."""
    found = {
        (record["group"], record["member"]): np.array(record["reference"], dtype=np.float32)
        for record in records
        if "reference" in record
    }
    keys = [(t.admission.group.group, t.admission.member) for t in batch.trajectories]
    if not plan.kl(step - 1) or not all(key in found for key in keys):
        return None
    return KlPenalty(plan.kl(step - 1), [found[key] for key in keys])


def _group(group: int, members: list[Trajectory]) -> TrainingGroup:
    ordered = tuple(sorted(members, key=lambda member: member.admission.member))
    rewards = tuple(member.reward for member in ordered if member.reward is not None)
    return TrainingGroup(group, ordered, rewards)


def _tokens(record: Mapping[str, Any]) -> TokenSequence:
    """The token sequence; its rules are checked once more as it is built."""
    ids, logprobs = record["tokens"], iter(record["logprobs"])
    first, *spans = record["spans"] or [["prompt", 0, 0]]
    tokens = TokenSequence(ids[first[1] : first[2]])
    for kind, start, end in spans:
        if kind == SpanKind.SAMPLED:
            drawn = [next(logprobs) for _ in range(end - start)]
            sample = Sample(tokens=ids[start:end], logprobs=drawn, stop_reason="stop")
            tokens.append_sampled(sample, record["policy"])
        else:
            tokens.append_bridge(ids[start:end])
    return tokens
