"""Drawing a token from logits, by a number that depends on the request and its step only.

The uniform number of (seed, step) is a counter-based hash, SplitMix64's finaliser (Steele, Lea &
Flood 2014): no generator state, nothing shared between requests, so a request draws the same
tokens in any company. The token is the first whose cumulative probability exceeds the number.
"""

import numpy as np

from mtrl_cli.local.engine.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniform(seeds: Array, steps: Array) -> Array:
    """float64 in [0, 1) for each pair of ``seeds`` and ``steps`` (uint64 arrays)."""
    hashed = _mix(_mix(seeds + _GOLDEN) + (steps + np.uint64(1)) * _GOLDEN)
    return np.asarray((hashed >> np.uint64(11)) * 2.0**-53)


def choose(
    logits: Array, temperature: Array, top_k: Array, top_p: Array, numbers: Array
) -> Array:
    """One token id a row of ``logits`` [n, vocab]; temperature 0 takes the most likely.

    ``top_k`` (below 1: off) keeps the k most likely tokens, ``top_p`` then the smallest set of
    most likely tokens whose probability reaches it (1: off); both act after the temperature.
    """
    greedy = temperature <= 0
    shifted = logits - logits.max(-1, keepdims=True)
    shifted /= np.where(greedy, 1, temperature).astype(np.float32)[:, None]
    weights = np.exp(shifted)
    for row in np.flatnonzero((top_k > 0) | (top_p < 1)):
        _filter(weights[row], int(top_k[row]), float(top_p[row]))
    cumulative = np.cumsum(weights, -1, dtype=np.float64)
    reached = cumulative <= (numbers * cumulative[:, -1])[:, None]
    return np.where(greedy, logits.argmax(-1), reached.sum(-1))


def _filter(weights: Array, top_k: int, top_p: float) -> None:
    """Zero what the filters leave out of one row (ties: the smaller id is kept first)."""
    order = np.argsort(-weights, kind="stable")
    if 0 < top_k < len(order):
        weights[order[top_k:]] = 0
    if top_p < 1:
        reached = np.cumsum(weights[order], dtype=np.float64)
        keep = 1 + int((reached < top_p * reached[-1]).sum())
        weights[order[keep:]] = 0
