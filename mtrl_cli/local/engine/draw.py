"""Drawing a token from logits, by a number that depends on the request and its step only.

The uniform number of (seed, step) is a counter-based hash, SplitMix64's finaliser (Steele, Lea &
Flood 2014): no generator state, nothing shared between requests, so a request draws the same
tokens in any company. The token is the first whose cumulative probability exceeds the number;
to find it, probabilities are added up in runs of ``RUN``, first over runs, then within one.
"""

import numpy as np

from mtrl_cli.local.engine.types import Array

RUN = 32
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniform(seeds: Array, steps: Array) -> Array:
    """float64 in [0, 1) for each pair of ``seeds`` and ``steps`` (uint64 arrays)."""
    hashed = _mix(_mix(seeds + _GOLDEN) + (steps + np.uint64(1)) * _GOLDEN)
    return np.asarray((hashed >> np.uint64(11)) * 2.0**-53)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return np.asarray(z ^ (z >> np.uint64(31)))


def choose(
    logits: Array, temperature: Array, top_k: Array, top_p: Array, numbers: Array
) -> tuple[Array, Array]:
    """One token id a row of ``logits`` [n, vocab], and its logprob.

    Temperature 0 takes the most likely token. ``top_k`` (below 1: off) keeps the k most likely
    tokens, ``top_p`` then the smallest set of most likely ones whose probability reaches it
    (1: off); both act after the temperature. The logprob is that of ``logits`` as they are: no
    temperature, no filter.
    """
    shifted = logits - logits.max(-1, keepdims=True)
    weights = np.exp(shifted)
    normalizer = np.log(weights.sum(-1))
    greedy = temperature <= 0
    for row in np.flatnonzero((temperature != 1) & ~greedy):
        weights[row] = np.exp(shifted[row] / np.float32(temperature[row]))
    for row in np.flatnonzero((top_k > 0) | (top_p < 1)):
        _filter(weights[row], int(top_k[row]), float(top_p[row]))
    chosen = np.where(greedy, logits.argmax(-1), _inverse(weights, numbers))
    return chosen, shifted[np.arange(len(chosen)), chosen] - normalizer


def _inverse(weights: Array, numbers: Array) -> Array:
    """The inverse of each row's cumulative distribution (not normalised) at ``numbers``."""
    rows, vocab = weights.shape
    if vocab % RUN:
        weights = np.pad(weights, ((0, 0), (0, -vocab % RUN)))
    runs = weights.reshape(rows, -1, RUN)
    ends = np.add.reduce(runs, -1).cumsum(-1, dtype=np.float64)
    wanted = numbers * ends[:, -1]
    every = np.arange(rows)
    run = (ends <= wanted[:, None]).sum(-1)
    before = np.where(run > 0, ends[every, run - 1], 0)
    inside = runs[every, run]
    place = (inside.cumsum(-1, dtype=np.float64) <= (wanted - before)[:, None]).sum(-1)
    # The run's own sum rounds differently and may end short of the number: then it is the run's
    # last token that has any probability.
    last = RUN - 1 - (inside[:, ::-1] > 0).argmax(-1)
    return np.asarray(run * RUN + np.minimum(place, last))


def _filter(weights: Array, top_k: int, top_p: float) -> None:
    """Zero what the filters leave out of one row (ties: the smaller id is kept first)."""
    order = np.argsort(-weights, kind="stable")
    if 0 < top_k < len(order):
        weights[order[top_k:]] = 0
    if top_p < 1:
        reached = np.cumsum(weights[order], dtype=np.float64)
        keep = 1 + int((reached < top_p * reached[-1]).sum())
        weights[order[keep:]] = 0
