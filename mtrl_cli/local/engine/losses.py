"""The losses of the Tinker API, per token, with their derivative by the token's logprob.

With l the logprob of the target under the trained model, l' the one under the sampling policy,
r = exp(l - l'), A the advantage and w the weight, and c(r) = min(max(r, low), high):

    cross_entropy        -w l                 d/dl = -w
    importance_sampling  -r A                 d/dl = -r A
    ppo                  -min(r A, c(r) A)    d/dl = -r A where r A <= c(r) A, else 0
    cispo                -c(r) A l            d/dl = -c(r) A   (no gradient through c(r))

A batch's loss is the **sum** over its tokens and data, as on hosted Tinker: nothing is divided
by a token count. Whoever wants a mean scales the advantages (or weights). Adam does not feel
the scale, ``grad_clip_norm`` does.
"""

from collections.abc import Mapping

import numpy as np

from mtrl_cli.local.engine.types import Array, LossName

CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Bounds of the ratio r itself (not distances from 1), and their defaults."""

_NEEDS: dict[LossName, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
}


def needed_inputs(loss: LossName) -> tuple[str, ...]:
    """The float inputs that ``loss`` reads from a datum; ValueError on an unknown loss."""
    try:
        return _NEEDS[loss]
    except KeyError:
        raise ValueError(f"unknown loss {loss!r}; known: {', '.join(_NEEDS)}") from None


def clip_range(loss: LossName, config: Mapping[str, float]) -> tuple[float, float]:
    """The bounds of r for ``loss``; ValueError on a key it has no use for or an empty range."""
    known = CLIP if loss in ("ppo", "cispo") else {}
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ValueError(f"loss {loss} does not know {', '.join(unknown)}")
    merged = {**CLIP, **config}
    low, high = merged["clip_low_threshold"], merged["clip_high_threshold"]
    if not 0 <= low <= high:
        raise ValueError(f"clip thresholds must satisfy 0 <= low <= high, got {low} and {high}")
    return low, high


def loss_and_slope(
    loss: LossName, logp: Array, inputs: Mapping[str, Array], clip: tuple[float, float]
) -> tuple[Array, Array]:
    """Loss and d loss / d logp of every position, both shaped like ``logp``."""
    if loss == "cross_entropy":
        weights = inputs["weights"].astype(logp.dtype, copy=False)
        return -weights * logp, -weights
    advantages = inputs["advantages"].astype(logp.dtype, copy=False)
    # An observation has no sampling logprob (0 by convention) and advantage 0: its ratio is
    # meaningless, may overflow, and must not turn 0 * inf into NaN.
    live = advantages != 0
    gap = np.where(live, logp - inputs["logprobs"].astype(logp.dtype, copy=False), 0)
    ratio = np.exp(gap)
    plain = ratio * advantages
    if loss == "importance_sampling":
        return -plain, -plain
    bounded = np.clip(ratio, *clip) * advantages
    if loss == "cispo":
        return -bounded * logp, -bounded
    return -np.minimum(plain, bounded), np.where(plain <= bounded, -plain, 0)
