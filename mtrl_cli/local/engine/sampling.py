"""Continuous batching: requests come and go while the others advance token by token.

The sampler keeps one decode batch for each set of weights in use and one block cache for all.
A request's tokens and logprobs are a function of weights, prompt, parameters and seed, bit for
bit: whatever else is in flight and whatever the cache holds (see ``prefill`` and ``decode``).
"""

import secrets
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from mtrl_cli.local.engine import draw, prefill
from mtrl_cli.local.engine.blocks import Block, BlockCache
from mtrl_cli.local.engine.decode import DecodeBatch
from mtrl_cli.local.engine.tiles import row_tile, tiled
from mtrl_cli.local.engine.types import Array, Completion, SampleSpec, Shape, Weights

CACHE_BYTES = 192 * 2**20


@dataclass(eq=False)
class _Request:
    key: Hashable
    weights_id: str
    weights: Weights
    spec: SampleSpec
    prompt: Array
    seed: int
    limit: int
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None


@dataclass
class _Lane:
    """The requests in flight on one set of weights."""

    weights: Weights
    batch: DecodeBatch
    requests: dict[int, _Request] = field(default_factory=dict)


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
        self._waiting: deque[_Request] = deque()
        self._lanes: dict[str, _Lane] = {}

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
        self._waiting.append(_Request(key, weights_id, weights, spec, prompt, seed, limit))

    def cancel(self, key: Hashable) -> None:
        """Drop a request, wherever it is; unknown keys are ignored."""
        self._waiting = deque(request for request in self._waiting if request.key != key)
        for lane in self._lanes.values():
            for request in [r for r in lane.requests.values() if r.key == key]:
                self._leave(lane, request)

    def forget(self, weights_id: str) -> None:
        """Drop the cached prompt blocks of one set of weights; requests in flight go on."""
        self._cache.forget(weights_id)

    def step(self) -> list[tuple[Hashable, Completion]]:
        """Admit what fits, advance everything in flight by one token, return the finished."""
        finished = self._admit()
        for weights_id, lane in list(self._lanes.items()):
            if lane.requests:
                finished += self._advance(lane)
            if not lane.requests:
                del self._lanes[weights_id]
        return finished

    def _in_flight(self) -> int:
        return sum(len(lane.requests) for lane in self._lanes.values())

    def _admit(self) -> list[tuple[Hashable, Completion]]:
        """Compute waiting prompts and draw their first tokens."""
        free = self._max_rows - self._in_flight()
        by_weights: dict[str, list[_Request]] = {}
        for _ in range(min(free, len(self._waiting))):
            request = self._waiting.popleft()
            by_weights.setdefault(request.weights_id, []).append(request)
        finished = []
        for weights_id, requests in by_weights.items():
            weights = requests[0].weights
            paths = self._prefill(weights_id, weights, requests)
            lane = self._lanes.get(weights_id)
            if lane is None:
                batch = DecodeBatch(self._shape, weights, self._max_rows)
                lane = self._lanes[weights_id] = _Lane(weights, batch)
            for request, path in zip(requests, paths, strict=True):
                request.slot = lane.batch.occupy(path)
                lane.requests[request.slot] = request
            ends = [(path[-1].final, len(path[-1].tokens) - 1) for path in paths]
            outputs = np.stack([final[last] for final, last in ends if final is not None])
            finished += self._take(lane, requests, self._logits(weights, outputs))
        return finished

    def _prefill(
        self, weights_id: str, weights: Weights, requests: list[_Request]
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

    def _advance(self, lane: _Lane) -> list[tuple[Hashable, Completion]]:
        fed = np.zeros(lane.batch.size, np.intp)
        for slot, request in lane.requests.items():
            fed[slot] = request.tokens[-1]
        outputs = lane.batch.advance(fed)
        slots = list(lane.requests)
        requests = list(lane.requests.values())
        return self._take(lane, requests, self._logits(lane.weights, outputs[slots]))

    def _logits(self, weights: Weights, outputs: Array) -> Array:
        return tiled(outputs, weights["embed"].T, row_tile(self._shape))

    def _take(
        self, lane: _Lane, requests: list[_Request], logits: Array
    ) -> list[tuple[Hashable, Completion]]:
        """Draw one token for each request; those that end leave the lane."""
        specs = [request.spec for request in requests]
        seeds = np.array([request.seed for request in requests], np.uint64)
        steps = np.array([len(request.tokens) for request in requests], np.uint64)
        chosen, logprobs = draw.choose(
            logits,
            np.array([spec.temperature for spec in specs]),
            np.array([spec.top_k for spec in specs]),
            np.array([spec.top_p for spec in specs]),
            draw.uniform(seeds, steps),
        )
        finished = []
        for request, token, logprob in zip(
            requests, chosen.tolist(), logprobs.tolist(), strict=True
        ):
            request.tokens.append(token)
            request.logprobs.append(min(logprob, 0.0))
            stopped = token in request.spec.stop_ids
            if stopped or len(request.tokens) == request.limit:
                self._leave(lane, request)
                completion = Completion(
                    request.tokens, request.logprobs, "stop" if stopped else "length",
                    request.prompt_logprobs,
                )  # fmt: skip
                finished.append((request.key, completion))
        return finished

    def _leave(self, lane: _Lane, request: _Request) -> None:
        lane.batch.release(request.slot)
        del lane.requests[request.slot]
