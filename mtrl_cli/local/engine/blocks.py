"""Prompts in blocks of 32 tokens, and the cache of what was computed for them.

A prompt's keys and values depend on nothing but weights and tokens: block n is always computed
by the same kernel, from the same 32 (or, for the last block, fewer) tokens and the blocks before
it. So a block is identified by its predecessor and its tokens, and can be shared by all requests
that begin alike. What was *sampled* is never shared: decoding computes the same numbers by
another kernel, which rounds differently.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mtrl_cli.local.engine.types import Array, Shape

BLOCK = 32
"""Tokens in a block, and rows of the tiles that blocks are computed in."""
_uids = count(1)


@dataclass(eq=False)
class Block:
    """One block of some prompt, after its predecessors ``before`` (outermost first)."""

    tokens: Array  # int [1..BLOCK]; shorter than BLOCK at the end of a prompt only
    before: tuple["Block", ...]
    keys: Array  # [layers, heads, head, BLOCK]: transposed, ready to be multiplied
    values: Array  # [layers, heads, BLOCK, head]
    final: Array | None = None  # [BLOCK, width], the normed output, where it was asked for
    inner: Array | None = None  # [BLOCK - 1], logprob of each next token inside the block
    after: Array | None = None  # [vocab], logprobs of what follows the block's last token
    uid: int = field(default_factory=lambda: next(_uids))

    @property
    def depth(self) -> int:
        return len(self.before)

    @property
    def full(self) -> bool:
        return len(self.tokens) == BLOCK


class BlockCache:
    """Blocks by (weights, predecessor, tokens); the least recently used go first.

    Eviction only forgets: requests in flight keep the blocks that they hold.
    """

    def __init__(self, shape: Shape, max_bytes: int) -> None:
        self._shape = shape
        size = 4 * BLOCK * shape.width * (2 * shape.layers + 1)
        self._capacity = max(1, max_bytes // size)
        self._blocks: OrderedDict[tuple[str, int, bytes], Block] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def path(self, weights_id: str, tokens: Array) -> tuple[list[Block], list[Block]]:
        """The blocks of ``tokens``, and which of them are new (still to be computed)."""
        path: list[Block] = []
        fresh: list[Block] = []
        keys: list[tuple[str, int, bytes]] = []
        for start in range(0, len(tokens), BLOCK):
            part = tokens[start : start + BLOCK]
            key = (weights_id, path[-1].uid if path else 0, part.tobytes())
            block = self._blocks.get(key)
            if block is None:
                block = self._blocks[key] = self._new(part, tuple(path))
                fresh.append(block)
            keys.append(key)
            path.append(block)
        for key in reversed(keys):  # predecessors last: they outlive what builds on them
            self._blocks.move_to_end(key)
        return path, fresh

    def trim(self) -> None:
        """Evict down to the byte bound."""
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def forget(self, weights_id: str) -> None:
        """Drop all blocks of one set of weights."""
        for key in [key for key in self._blocks if key[0] == weights_id]:
            del self._blocks[key]

    def _new(self, tokens: Array, before: tuple[Block, ...]) -> Block:
        s = self._shape
        return Block(
            tokens, before,
            np.empty((s.layers, s.heads, s.head, BLOCK), np.float32),
            np.empty((s.layers, s.heads, BLOCK, s.head), np.float32),
        )  # fmt: skip


def stacked(blocks: Sequence[Block], layer: int, what: str) -> Array:
    """Keys or values of one layer for a list of blocks, [1 or n, heads, ...].

    If all are the same block it is not copied: the one matrix broadcasts.
    """
    first = blocks[0]
    if all(block is first for block in blocks):
        return np.asarray(getattr(first, what)[layer][None])
    return np.stack([getattr(block, what)[layer] for block in blocks])
