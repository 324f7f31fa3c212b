"""Prompt blocks through the transformer: keys and values, and logits where they are asked for.

Everything is a stack of equal tiles: 32 positions of one block as rows of every product, 32 keys
of one block as columns of every score matrix. A tile's product is always the same BLAS call with
the same shapes, so its bits depend on the block and its predecessors only, and not on how many
other blocks happen to be computed beside it. Sums over keys are formed block by block, in order;
a block that one tile attends to and another does not adds exact zeros to the latter.
"""

from collections.abc import Sequence

import numpy as np

from mtrl_cli.local.engine.blocks import BLOCK, Block, stacked
from mtrl_cli.local.engine.ops import log_normalizer, norm, turn, turns
from mtrl_cli.local.engine.types import Array, Shape, Weights

BLOCKS_AT_ONCE = 16
_FUTURE = np.triu(np.full((BLOCK, BLOCK), -np.inf, np.float32), 1)


def compute(shape: Shape, weights: Weights, blocks: Sequence[Block], final: set[Block]) -> None:
    """Fill in ``blocks`` (in order of depth); ``final`` also get their output."""
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        _compute(shape, weights, blocks[start : start + BLOCKS_AT_ONCE], final)


def _compute(shape: Shape, weights: Weights, blocks: Sequence[Block], final: set[Block]) -> None:
    tokens = np.zeros((len(blocks), BLOCK), np.intp)
    for row, block in zip(tokens, blocks, strict=True):
        row[: len(block.tokens)] = block.tokens
    x = weights["embed"][tokens]
    places = np.array([block.depth * BLOCK for block in blocks])[:, None] + np.arange(BLOCK)
    # What pads the last block may lie beyond the context: any factor will do there.
    factors = turns(shape)[np.minimum(places, shape.context - 1)]
    for layer in range(shape.layers):
        qkv = norm(x)[0] @ weights[f"layer{layer}.qkv"]
        turn(qkv, factors)
        split = qkv.reshape(len(blocks), BLOCK, 3, shape.heads, shape.head)
        query, key, value = split.transpose(2, 0, 3, 1, 4)
        for n, block in enumerate(blocks):
            block.keys[layer] = key[n].swapaxes(1, 2)
            block.values[layer] = value[n]
        if layer == shape.layers - 1:
            # Above the last keys and values only blocks whose output is wanted go on.
            chosen = [n for n, block in enumerate(blocks) if block in final]
            if not chosen:
                return
            blocks = [blocks[n] for n in chosen]
            x, query = x[chosen], query[chosen]
        mixed = _attend(np.ascontiguousarray(query), blocks, layer)
        x = x + mixed @ weights[f"layer{layer}.out"]
        hidden = norm(x)[0] @ weights[f"layer{layer}.up"]
        np.maximum(hidden, 0, out=hidden)
        hidden *= hidden
        x += hidden @ weights[f"layer{layer}.down"]
    for block, output in zip(blocks, norm(x)[0], strict=True):
        block.final = output


def _attend(query: Array, blocks: Sequence[Block], layer: int) -> Array:
    """Attention of ``query`` [blocks, heads, BLOCK, head] to predecessors and own block.

    Returns [blocks, BLOCK, width].
    """
    deepest = blocks[-1].depth
    scores = np.empty((deepest + 1, *query.shape[:3], BLOCK), np.float32)
    # In order of depth, the blocks that have a predecessor at some depth are the last ones.
    begin = [sum(block.depth <= depth for block in blocks) for depth in range(deepest)]
    pages = [[b.before[depth] for b in blocks[first:]] for depth, first in enumerate(begin)]
    for depth, first in enumerate(begin):
        scores[depth, :first] = -np.inf
        keys = stacked(pages[depth], layer, "keys")
        np.matmul(query[first:], keys, out=scores[depth, first:])
    own = scores[deepest]
    np.matmul(query, np.stack([block.keys[layer] for block in blocks]), out=own)
    own += _FUTURE
    scores -= np.maximum.reduce(np.maximum.reduce(scores, 0), -1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = np.zeros_like(query, order="C")
    for depth, first in enumerate(begin):
        mixed[first:] += scores[depth, first:] @ stacked(pages[depth], layer, "values")
    mixed += own @ np.stack([block.values[layer] for block in blocks])
    mixed /= np.add.reduce(np.add.reduce(scores, 0), -1, keepdims=True)
    return mixed.transpose(0, 2, 1, 3).reshape(len(blocks), BLOCK, -1)


def score(weights: Weights, blocks: Sequence[Block]) -> None:
    """Fill in ``inner`` and ``after`` of ``blocks``, whose ``final`` must be there."""
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        some = blocks[start : start + BLOCKS_AT_ONCE]
        outputs = np.stack([block.final for block in some if block.final is not None])
        logits = outputs @ weights["embed"].T
        logits -= log_normalizer(logits)
        for block, found in zip(some, logits, strict=True):
            last = len(block.tokens) - 1
            block.inner = found[np.arange(last), block.tokens[1:]]
            block.after = found[last].copy()


def prompt_logprobs(path: Sequence[Block]) -> list[float | None]:
    """Logprob of each token of a scored path; None for the first."""
    found: list[float | None] = [None]
    for block, following in zip(path, [*path[1:], None], strict=True):
        assert block.inner is not None
        assert block.after is not None
        found.extend(block.inner.tolist())
        if following is not None:
            found.append(float(block.after[following.tokens[0]]))
    return found
