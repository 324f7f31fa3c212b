"""Continuous batching: requests come and go while the others advance token by token.

The sampler keeps one decode batch for each set of weights in use and one block cache for all.
A request's tokens and logprobs are a function of weights, prompt, parameters and seed, bit for
bit: whatever else is in flight and whatever the cache holds (see ``prefill`` and ``decode``).
"""

import secrets
from collections import deque
from collections.abc import Hashable

import numpy as np

from mtrl_cli.local.engine import prefill
from mtrl_cli.local.engine.blocks import Block, BlockCache
from mtrl_cli.local.engine.lanes import Finished, Lane, Request
from mtrl_cli.local.engine.types import SampleSpec, Shape, Weights

CACHE_BYTES = 192 * 2**20


class Sampler:
    """Samples from any number of weight sets at once. One thread calls it.

    ``max_rows`` bounds the requests in flight; further ones wait, first come first served.
    ``cache_bytes`` bounds the prompt blocks kept for later requests.
    """

    def __init__(self, shape: Shape, max_rows: int = 64, cache_bytes: int = CACHE_BYTES) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, got {max_rows}")
        self._shape, self._max_rows = shape, max_rows
        self._cache = BlockCache(shape, cache_bytes)
        self._waiting: deque[Request] = deque()
        self._lanes: dict[str, Lane] = {}

    @property
    def active(self) -> int:
        """Requests submitted and neither finished nor cancelled."""
        return len(self._waiting) + self._in_flight()

    def submit(self, key: Hashable, weights_id: str, weights: Weights, spec: SampleSpec) -> None:
        """Queue a request. ``weights_id`` names ``weights`` for the prefix cache.

        ``max_tokens`` is cut to what the context leaves. ValueError if nothing is left, if the
        prompt is empty or has ids outside the vocabulary, or if a parameter is out of range.
        """
        prompt = np.asarray(spec.tokens, np.int32)
        room = self._shape.context - len(prompt)
        if prompt.ndim != 1 or not len(prompt):
            raise ValueError("the prompt is empty")
        if room < 1:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens leaves no room in a context of "
                f"{self._shape.context}"
            )
        if prompt.min() < 0 or prompt.max() >= self._shape.vocab:
            raise ValueError(f"prompt ids outside the vocabulary of {self._shape.vocab}")
        if spec.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {spec.max_tokens}")
        if not 0 <= spec.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {spec.temperature}")
        if not 0 < spec.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {spec.top_p}")
        seed = secrets.randbits(64) if spec.seed is None else spec.seed % 2**64
        limit = min(spec.max_tokens, room)
        self._waiting.append(Request(key, weights_id, weights, spec, prompt, seed, limit))

    def cancel(self, key: Hashable) -> None:
        """Drop a request, wherever it is; unknown keys are ignored."""
        self._waiting = deque(request for request in self._waiting if request.key != key)
        for lane in self._lanes.values():
            for request in [r for r in lane.requests.values() if r.key == key]:
                lane.leave(request)

    def forget(self, weights_id: str) -> None:
        """Drop the cached prompt blocks of one set of weights; requests in flight go on."""
        self._cache.forget(weights_id)

    def step(self) -> Finished:
        """Admit what fits, advance everything in flight by one token, return the finished."""
        finished = self._admit()
        for weights_id, lane in list(self._lanes.items()):
            if lane.requests:
                finished += lane.advance()
            if not lane.requests:
                del self._lanes[weights_id]
        return finished

    def _in_flight(self) -> int:
        return sum(len(lane.requests) for lane in self._lanes.values())

    def _admit(self) -> Finished:
        """Compute waiting prompts and draw their first tokens."""
        free = self._max_rows - self._in_flight()
        by_weights: dict[str, list[Request]] = {}
        for _ in range(min(free, len(self._waiting))):
            request = self._waiting.popleft()
            by_weights.setdefault(request.weights_id, []).append(request)
        finished: Finished = []
        for weights_id, requests in by_weights.items():
            weights = requests[0].weights
            paths = self._prefill(weights_id, weights, requests)
            lane = self._lanes.get(weights_id)
            if lane is None:
                lane = self._lanes[weights_id] = Lane(self._shape, weights, self._max_rows)
            finished += lane.join(requests, paths)
        return finished

    def _prefill(
        self, weights_id: str, weights: Weights, requests: list[Request]
    ) -> list[list[Block]]:
        """The computed blocks of all prompts; those not cached are computed together."""
        paths: list[list[Block]] = []
        work: dict[Block, None] = {}
        scored: dict[Block, None] = {}
        final: set[Block] = set()
        for request in requests:
            path, fresh = self._cache.path(weights_id, request.prompt)
            paths.append(path)
            wanted = path if request.spec.prompt_logprobs else path[-1:]
            work |= dict.fromkeys(fresh)
            work |= dict.fromkeys(block for block in wanted if block.final is None)
            final |= set(wanted)
            if request.spec.prompt_logprobs:
                scored |= dict.fromkeys(block for block in path if block.after is None)
        # By depth, so that predecessors come first; each block's bits do not depend on it.
        prefill.compute(self._shape, weights, sorted(work, key=lambda block: block.depth), final)
        prefill.score(weights, list(scored))
        for request, path in zip(requests, paths, strict=True):
            if request.spec.prompt_logprobs:
                request.prompt_logprobs = prefill.prompt_logprobs(path)
        self._cache.trim()
        return paths
