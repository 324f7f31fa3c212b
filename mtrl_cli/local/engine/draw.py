"""Drawing a token from logits, by a number that depends on the request and its step only.

The uniform number of (seed, step) is a counter-based hash, SplitMix64's finaliser (Steele, Lea &
Flood 2014): no generator state, nothing shared between requests, so a request draws the same
tokens in any company. The token is the first whose cumulative probability exceeds the number;
to find it, probabilities are added up in runs of ``RUN``, first over runs, then within one.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mtrl_cli.local.engine.types import Array

RUN = 32
COLDEST = 1e-30
"""Below this temperature a quotient could leave single precision, and chance has left long ago."""
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


@dataclass(frozen=True)
class Rules:
    """How each row of a batch is drawn from.

    Temperature 0 (or below `COLDEST`) takes the most likely token. ``top_k`` (below 1: off) keeps
    the k most likely tokens, ``top_p`` then the smallest set of most likely ones whose probability
    reaches it (1: off); both act after the temperature.
    """

    temperature: Array
    top_k: Array
    top_p: Array

    @cached_property
    def greedy(self) -> Array:
        """The rows without chance."""
        return np.flatnonzero(self.temperature < COLDEST)

    @cached_property
    def scaled(self) -> Array:
        """The rows with a temperature of their own."""
        return np.flatnonzero((self.temperature >= COLDEST) & (self.temperature != 1))

    @cached_property
    def filtered(self) -> Array:
        """The rows that leave tokens out."""
        return np.flatnonzero((self.top_k > 0) | (self.top_p < 1))


def choose(logits: Array, rules: Rules, numbers: Array) -> tuple[Array, Array]:
    """One token id a row of ``logits`` [n, vocab], and its logprob.

    The logprob is that of ``logits`` as they are: no temperature, no filter.
    """
    rows, vocab = logits.shape
    # Whole runs: what is beyond the vocabulary has probability 0.
    shifted = np.empty((rows, vocab + -vocab % RUN), logits.dtype)
    shifted[:, vocab:] = -np.inf
    np.subtract(logits, np.maximum.reduce(logits, -1, keepdims=True), out=shifted[:, :vocab])
    weights = np.exp(shifted)
    normalizer = np.log(np.add.reduce(weights[:, :vocab], -1))
    for row in rules.scaled:
        weights[row] = np.exp(shifted[row] / np.float32(rules.temperature[row]))
    for row in rules.filtered:
        _filter(weights[row, :vocab], int(rules.top_k[row]), float(rules.top_p[row]))
    chosen = _inverse(weights, numbers)
    if len(rules.greedy):
        chosen[rules.greedy] = logits[rules.greedy].argmax(-1)
    return chosen, shifted[np.arange(rows), chosen] - normalizer


def _inverse(weights: Array, numbers: Array) -> Array:
    """The inverse of each row's cumulative distribution (not normalised) at ``numbers``."""
    rows = len(weights)
    runs = weights.reshape(rows, -1, RUN)
    ends = np.zeros((rows, runs.shape[1] + 1))
    np.add.accumulate(np.add.reduce(runs, -1), -1, np.float64, out=ends[:, 1:])
    wanted = numbers * ends[:, -1]
    every = np.arange(rows)
    run = np.add.reduce(ends[:, 1:] <= wanted[:, None], -1)
    inside = runs[every, run]
    within = np.add.accumulate(inside, -1, np.float64)
    place = np.add.reduce(within <= (wanted - ends[every, run])[:, None], -1)
    if np.maximum.reduce(place) == RUN:
        # The run's own sum rounds differently and may end short of the number: then it is the
        # run's last token that has any probability.
        place = np.minimum(place, RUN - 1 - (inside[:, ::-1] > 0).argmax(-1))
    return np.asarray(run * RUN + place)


def _filter(weights: Array, top_k: int, top_p: float) -> None:
    """Zero what the filters leave out of one row (ties: the smaller id is kept first)."""
    order = np.argsort(-weights, kind="stable")
    if 0 < top_k < len(order):
        weights[order[top_k:]] = 0
    if top_p < 1:
        reached = np.cumsum(weights[order], dtype=np.float64)
        keep = 1 + int((reached < top_p * reached[-1]).sum())
        weights[order[keep:]] = 0
