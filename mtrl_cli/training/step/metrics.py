"""The figures of one step: what metrics.jsonl holds and what a line on the screen shows."""

from collections.abc import Mapping, Sequence

import numpy as np

from mtrl_cli.rollout.group import Group
from mtrl_cli.training.evaluation.games import PassRule, invalid_share
from mtrl_cli.training.evaluation.statistics import mean_of
from mtrl_cli.training.step.accumulation import Accumulated
from mtrl_cli.training.step.batch import Batch
from mtrl_cli.training.step.groups import TrainingBatch


def rollout_metrics(
    groups: Sequence[Group], kept: TrainingBatch, policy_step: int
) -> dict[str, float]:
    """Figures of what was sampled in a step, over all members that have a reward.

    ``policy_step`` is the optimizer step that made the policy in training.
    """
    members = [member for group in groups for member in group.members]
    rewards = [member.reward for member in members if member.reward is not None]
    failures = sum(len(group.failures) for group in groups)
    sampled = sum(member.tokens.sampled_count for member in members)
    figures = {
        "episodes": float(len(members)),
        "failed_episodes": float(failures),
        "groups": float(len(groups)),
        "groups_trained": float(len(groups) - sum(kept.skipped.values())),
        "tokens_sampled": float(sampled),
        "tokens": float(sum(len(member.tokens) for member in members)),
        "turns": float(np.mean([len(member.turns) for member in members])) if members else 0.0,
        "invalid_calls": invalid_share(members),
        "truncated": float(sum(member.truncated for member in members)),
    }
    if members:
        figures["seconds_policy"] = float(np.mean([m.seconds_policy for m in members]))
        figures["seconds_environment"] = float(np.mean([m.seconds_environment for m in members]))
        lags = [policy_step - group.admission.policy_step for group in groups if group.members]
        figures["staleness"], figures["staleness_max"] = float(np.mean(lags)), float(max(lags))
    figures |= {f"skipped/{reason}": float(count) for reason, count in kept.skipped.items()}
    if rewards:
        mean = mean_of(rewards)
        figures["reward"] = mean.value
        if mean.se is not None:
            figures["reward_se"] = mean.se
    if sampled:
        total = sum(sum(member.tokens.sampled_logprobs) for member in members)
        figures["entropy"] = -total / sampled
    return figures


def outcome_metrics(groups: Sequence[Group], passed: PassRule) -> dict[str, float]:
    """How the episodes of a step came out: the share that passed, by the task's own rule, and the
    mean over groups of the rewards' standard deviation within a group."""
    rewards = [
        [member.reward for member in group.members if member.reward is not None] for group in groups
    ]
    every = [value for group in rewards for value in group]
    if not every:
        return {}
    return {
        "pass_rate": float(np.mean([passed(value) for value in every])),
        "group_std": float(np.mean([np.std(group) for group in rewards if group])),
    }


def training_metrics(
    batch: Batch, accumulated: Accumulated, optimizer: Mapping[str, float]
) -> dict[str, float]:
    """Figures of a step that was trained; the server's own under ``server/``."""
    figures = {
        "loss": accumulated.loss,
        "calls": float(accumulated.calls),
        "trained_episodes": float(len(batch.data)),
    }
    return figures | {f"server/{name}": value for name, value in optimizer.items()}
