"""From trainable groups to the arrays that a training call sends.

One datum per trajectory, shifted by one: position i of a datum predicts token i + 1. On the
positions that predict a sampled token the datum has that token's logprob as it was sampled, and
its advantage

    a_t = w · (A − β · (logp_t − ref_t))

with A the member's group-relative advantage (rewards are normalised first), β the KL
coefficient, logp_t the sampler's logprob and ref_t the initial policy's logprob of the same
token. β · (logp_t − ref_t) is the single-sample estimate of the KL penalty to the initial
policy, as a per-token reward (RLHF's, arXiv:2203.02155). w is the token's weight in the step
(see `weighting`), which makes a server's summed loss the mean that is asked for. Everywhere else
logprob and advantage are 0, so that nothing but sampled tokens is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import Trajectory
from mtrl_cli.servers.interface import Datum
from mtrl_cli.training.step.advantages import AdvantageForm, group_advantages
from mtrl_cli.training.step.groups import TrainingBatch
from mtrl_cli.training.step.weighting import TOKEN_MEAN, Weighting, token_weights


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """β, and per trajectory the reference logprobs of its sampled tokens, float32 [sampled]."""

    coefficient: float
    reference: Sequence[NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Batch:
    """``data`` in the order of the batch's trajectories. ``kl`` is the mean of logp − ref over
    all sampled tokens, None without a reference."""

    data: tuple[Datum, ...]
    trajectories: tuple[Trajectory, ...]
    kl: float | None


def build_batch(
    groups: TrainingBatch,
    form: AdvantageForm,
    penalty: KlPenalty | None,
    weighting: Weighting = TOKEN_MEAN,
) -> Batch:
    """Build the datums of a step; members that carry no signal at all are left out.

    A member of a constant-reward group is in the batch only for its KL term.
    """
    advantages = [
        float(advantage)
        for group in groups.groups
        for advantage in group_advantages(group.rewards, form)
    ]
    members = list(groups.trajectories)
    counts = [member.tokens.sampled_count for member in members]
    weights = token_weights(counts, weighting)
    data: list[Datum] = []
    kept: list[Trajectory] = []
    divergence = 0.0
    for index, member in enumerate(members):
        logprobs = np.array(member.tokens.sampled_logprobs, dtype=np.float32)
        values = np.full(logprobs.shape, advantages[index], dtype=np.float64)
        if penalty is not None:
            difference = logprobs.astype(np.float64) - penalty.reference[index]
            divergence += float(difference.sum())
            values -= penalty.coefficient * difference
        weighted = (weights[index] * values).astype(np.float32)
        if weighted.any():
            data.append(datum(member.tokens, logprobs, weighted))
            kept.append(member)
    trained = sum(counts)
    kl = divergence / trained if penalty is not None and trained else None
    return Batch(tuple(data), tuple(kept), kl)


def sampled_positions(tokens: TokenSequence) -> NDArray[np.intp]:
    """The positions of a datum that predict a sampled token: the token's index minus one."""
    spans = [np.arange(span.start - 1, span.end - 1) for span, _ in tokens.sampled_spans()]
    return np.concatenate(spans) if spans else np.empty(0, dtype=np.intp)


def datum(
    tokens: TokenSequence, logprobs: NDArray[np.float32], advantages: NDArray[np.float32]
) -> Datum:
    """One trajectory as a training call sends it; logprobs and advantages are [sampled]."""
    ids = np.array(tokens.ids, dtype=np.int32)
    positions = sampled_positions(tokens)
    return Datum(
        tokens=ids[:-1],
        targets=ids[1:],
        logprobs=_scatter(len(ids) - 1, positions, logprobs),
        advantages=_scatter(len(ids) - 1, positions, advantages),
    )


def _scatter(
    length: int, positions: NDArray[np.intp], values: NDArray[np.float32]
) -> NDArray[np.float32]:
    full = np.zeros(length, dtype=np.float32)
    full[positions] = values
    return full
