"""The figures of one step: what metrics.jsonl holds and what a line on the screen shows."""

from collections.abc import Mapping, Sequence

import numpy as np

from mtrl_cli.rollout.group import Group
from mtrl_cli.servers.interface import ForwardBackwardResult
from mtrl_cli.training.batch import Batch, sampled_positions
from mtrl_cli.training.evaluation import invalid_share
from mtrl_cli.training.groups import TrainingBatch


def rollout_metrics(groups: Sequence[Group], kept: TrainingBatch) -> dict[str, float]:
    """Figures of what was sampled in a step, over all members that have a reward."""
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
    figures |= {f"skipped/{reason}": float(count) for reason, count in kept.skipped.items()}
    if rewards:
        figures["reward"] = float(np.mean(rewards))
        figures["reward_se"] = float(np.std(rewards) / np.sqrt(len(rewards)))
    if sampled:
        total = sum(sum(member.tokens.sampled_logprobs) for member in members)
        figures["entropy"] = -total / sampled
    return figures


def parity_metrics(batch: Batch, result: ForwardBackwardResult) -> dict[str, float]:
    """The sampler's logprobs against the trainer's, of the same tokens before the step."""
    differences = [
        np.abs(logprobs[positions] - datum.logprobs[positions])
        for member, datum, logprobs in zip(
            batch.trajectories, batch.data, result.logprobs, strict=True
        )
        for positions in [sampled_positions(member.tokens)]
    ]
    every = np.concatenate(differences)
    return {"parity_max": float(every.max()), "parity_mean": float(every.mean())}


def training_metrics(
    batch: Batch, result: ForwardBackwardResult, optimizer: Mapping[str, float]
) -> dict[str, float]:
    """Figures of a step that was trained; the server's own under ``server/``."""
    figures = {"loss": result.loss, "trained_episodes": float(len(batch.data))}
    figures |= parity_metrics(batch, result)
    figures |= {f"server/{name}": value for name, value in optimizer.items()}
    return figures
