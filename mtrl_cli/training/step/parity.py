"""Two computations of the same tokens' logprobs, in figures.

q is the policy that sampled the tokens, with its logprobs as they came with the samples; p is the
computation that they are held against. r = p / q per token is the importance ratio.

- ``parity_max``, ``parity_mean``: the absolute difference of the logprobs.
- Zeros: the share of tokens whose logprob is exactly 0 for q and less than -0.1 for p.
- k1 = mean(−log r) and k3 = mean(r − 1 − log r) both estimate KL(q ‖ p) from samples of q: k1
  without bias but of either sign, k3 never negative and of less variance (J. Schulman,
  "Approximating KL Divergence", 2020).
- Effective sample size: (Σ r)² / (n · Σ r²), the share of the tokens that would be worth as much
  unweighted (Kish, Survey Sampling, 1965); 1 when all ratios are equal.
- Clipped: the share of tokens that get no gradient (ppo: the clipped term is the smaller one), or
  a bounded one (cispo: the ratio is out of its bounds).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.servers.interface import LossSpec

Floats = NDArray[np.float64]

_UNCERTAIN = -0.1
"""A token that is less certain than this has no logprob of 0 in any precision."""

_LARGEST = 300.0
"""Logarithm of the largest ratio: its sum over a step stays a number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One trajectory's sampled tokens, all arrays [sampled].

    ``positions`` are the places in the datum that predict the tokens, ``sampled`` the sampler's
    logprobs, ``again`` the other computation's.
    """

    positions: NDArray[np.intp]
    sampled: Floats
    again: Floats


def parity_figures(pairs: Sequence[Pair], limit: float) -> dict[str, float]:
    """The absolute differences; ``limit`` is the one above which a token is counted."""
    gaps = np.abs(_joined(pairs, "again") - _joined(pairs, "sampled"))
    return {
        "parity_max": float(gaps.max()),
        "parity_mean": float(gaps.mean()),
        "audit/above": float((gaps > limit).mean()),
        "audit/zeros": float(_zeros(pairs).mean()),
        "audit/tokens": float(gaps.size),
    }


def ratio_figures(
    pairs: Sequence[Pair], advantages: Sequence[NDArray[np.float32]], loss: LossSpec
) -> dict[str, float]:
    """Of the importance ratios; ``advantages`` are the tokens', per trajectory [sampled]."""
    log_ratio = np.minimum(_joined(pairs, "again") - _joined(pairs, "sampled"), _LARGEST)
    ratio = np.exp(log_ratio)
    low, middle, high = np.percentile(ratio, (1, 50, 99))
    figures = {
        "audit/kl_k1": float(-log_ratio.mean()),
        "audit/kl_k3": float((np.expm1(log_ratio) - log_ratio).mean()),
        "audit/ratio_p1": float(low),
        "audit/ratio_p50": float(middle),
        "audit/ratio_p99": float(high),
        "audit/ratio_max": float(ratio.max()),
        "audit/ess": _effective(log_ratio),
    }
    share = _clipped(ratio, np.concatenate(advantages), loss)
    return figures if share is None else figures | {"audit/clipped": share}


def likely_cause(pairs: Sequence[Pair]) -> str:
    """What the two computations look like beside each other, in words; "" if like nothing known."""
    sampled, again = _joined(pairs, "sampled"), _joined(pairs, "again")
    if zeros := int(_zeros(pairs).sum()):
        return f"{zeros:,} of the sampler's logprobs are exactly 0 where the others are not"
    gap = float(np.abs(again - sampled).mean())
    for step, name in ((1, "next"), (-1, "previous")):
        shifted = _shifted_gap(pairs, step)
        if shifted is not None and shifted < gap / 5:
            return (
                f"each of the sampler's logprobs fits the one of the {name} token "
                f"(mean difference {shifted:.2g}): they are shifted by one"
            )
    return ""


def _joined(pairs: Sequence[Pair], name: str) -> Floats:
    return np.concatenate([getattr(pair, name) for pair in pairs])


def _zeros(pairs: Sequence[Pair]) -> NDArray[np.bool_]:
    zero = _joined(pairs, "sampled") == 0
    return np.asarray(zero & (_joined(pairs, "again") < _UNCERTAIN))


def _effective(log_ratio: Floats) -> float:
    scaled = np.exp(log_ratio - log_ratio.max())  # the figure does not depend on the scale
    return float(scaled.sum() ** 2 / (scaled.size * (scaled**2).sum()))


def _clipped(ratio: Floats, advantages: NDArray[np.float32], loss: LossSpec) -> float | None:
    if loss.name not in ("ppo", "cispo"):
        return None
    over = ratio > loss.config.get("clip_high_threshold", np.inf)
    under = ratio < loss.config.get("clip_low_threshold", 0.0)
    if loss.name == "ppo":
        over, under = over & (advantages > 0), under & (advantages < 0)
    return float((over | under).mean())


def _shifted_gap(pairs: Sequence[Pair], step: int) -> float | None:
    """The mean difference when each token's logprob is held against its neighbour's."""
    gaps = []
    for pair in pairs:
        ahead = slice(max(step, 0), len(pair.positions) + min(step, 0))
        behind = slice(max(-step, 0), len(pair.positions) + min(-step, 0))
        beside = pair.positions[ahead] - pair.positions[behind] == step
        gaps.append(np.abs(pair.again[ahead] - pair.sampled[behind])[beside])
    every = np.concatenate(gaps)
    return float(every.mean()) if every.size else None
