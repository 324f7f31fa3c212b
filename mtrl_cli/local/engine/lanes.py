"""A lane: the requests in flight on one set of weights.

What a step needs of its requests changes when one comes or goes, and hardly otherwise: slots,
rules, and the numbers that tokens are drawn by, which depend on seed and step alone. It stands in
arrays (`_Roster`) from one such moment to the next.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtrl_cli.local.engine import draw
from mtrl_cli.local.engine.blocks import Block
from mtrl_cli.local.engine.decode import DecodeBatch
from mtrl_cli.local.engine.tiles import row_tile, tiled
from mtrl_cli.local.engine.types import Array, Completion, SampleSpec, Shape, Weights

AHEAD = 16
"""Steps whose numbers are made at once: making them for one step costs nearly as much."""

Finished = list[tuple[Hashable, Completion]]


@dataclass(eq=False)
class Request:
    """A valid request: what it asks for, and what was sampled so far."""

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


class Lane:
    """Requests on the same weights, which advance together."""

    def __init__(self, shape: Shape, weights: Weights, max_rows: int) -> None:
        self._weights = weights
        self._tile = row_tile(shape)
        self._batch = DecodeBatch(shape, weights, max_rows)
        self._fed = np.zeros(self._batch.size, np.intp)
        self._roster: _Roster | None = None
        self.requests: dict[int, Request] = {}

    def join(self, requests: Sequence[Request], paths: Sequence[Sequence[Block]]) -> Finished:
        """Take in requests whose prompts are computed, and draw their first tokens."""
        for request, path in zip(requests, paths, strict=True):
            request.slot = self._batch.occupy(path)
            self.requests[request.slot] = request
        self._roster = None
        ends = [(path[-1].final, len(path[-1].tokens) - 1) for path in paths]
        outputs = np.stack([final[last] for final, last in ends if final is not None])
        return self._take(_Roster(requests, ahead=1), outputs)

    def advance(self) -> Finished:
        """Sample one more token for every request; there is at least one."""
        if self._roster is None:
            self._roster = _Roster(list(self.requests.values()), ahead=AHEAD)
        outputs = self._batch.advance(self._fed)
        return self._take(self._roster, outputs[self._roster.slots])

    def leave(self, request: Request) -> None:
        """Let go of a request."""
        self._batch.release(request.slot)
        del self.requests[request.slot]
        self._roster = None

    def _take(self, roster: "_Roster", outputs: Array) -> Finished:
        """Draw one token for each request of ``roster``; those that end leave the lane."""
        logits = tiled(outputs, self._weights["embed"].T, self._tile)
        chosen, logprobs = draw.choose(logits, roster.rules, roster.numbers())
        self._fed[roster.slots] = chosen
        finished = []
        for request, token, logprob in zip(
            roster.requests, chosen.tolist(), np.minimum(logprobs, 0).tolist(), strict=True
        ):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            stopped = token in request.spec.stop_ids
            if stopped or len(request.tokens) == request.limit:
                self.leave(request)
                completion = Completion(
                    request.tokens, request.logprobs, "stop" if stopped else "length",
                    request.prompt_logprobs,
                )  # fmt: skip
                finished.append((request.key, completion))
        return finished


class _Roster:
    """Requests that are drawn for together, as arrays with one row a request."""

    def __init__(self, requests: Sequence[Request], ahead: int) -> None:
        specs = [request.spec for request in requests]
        self.requests = requests
        self.slots = np.array([request.slot for request in requests])
        self.rules = draw.Rules(
            np.array([spec.temperature for spec in specs]),
            np.array([spec.top_k for spec in specs]),
            np.array([spec.top_p for spec in specs]),
        )
        self._seeds = np.array([[request.seed] for request in requests], np.uint64)
        done = np.array([[len(request.tokens)] for request in requests], np.uint64)
        self._steps = done + np.arange(ahead, dtype=np.uint64)
        self._numbers = draw.uniform(self._seeds, self._steps)
        self._next = 0

    def numbers(self) -> Array:
        """The numbers of the next step, float64 [requests]."""
        ahead = self._steps.shape[1]
        if self._next == ahead:
            self._steps += np.uint64(ahead)
            self._numbers = draw.uniform(self._seeds, self._steps)
            self._next = 0
        self._next += 1
        return self._numbers[:, self._next - 1]
