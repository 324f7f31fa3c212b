"""Decoding: all requests on one set of weights advance together by one token.

A request occupies a slot (row). It attends to

- *pages*: the prompt's full blocks but the last ``OWN`` ones. Requests that begin alike share
  them, so rows with the same page go through one product;
- its *tail*: the prompt's last blocks, copied, and the tokens sampled since, in chunks of 32.

Which keys are page and which are tail follows from the prompt alone, every product is formed in
tiles of constant shape (``tiles``), and sums over keys run page by page and chunk by chunk in
order. So neither the number of rows in flight, nor the slot, nor the company changes a bit of a
row's logits.
"""

from collections.abc import Sequence

import numpy as np

from mtrl_cli.local.engine.blocks import BLOCK, Block, stacked
from mtrl_cli.local.engine.ops import norm, turn, turns
from mtrl_cli.local.engine.tiles import row_tile, tiled
from mtrl_cli.local.engine.types import Array, Shape, Weights

OWN = 1
"""Full blocks at the prompt's end that are copied to the tail: most often nobody shares them."""


class DecodeBatch:
    """The rows in flight on one set of weights."""

    def __init__(self, shape: Shape, weights: Weights, max_rows: int) -> None:
        self._shape, self._weights = shape, weights
        self._tile = row_tile(shape)
        self.size = -(-max_rows // self._tile) * self._tile
        """Slots: ``max_rows`` rounded up to whole tiles."""
        self._pages: list[tuple[Block, ...] | None] = [None] * self.size
        self._groups: list[_PageGroups] | None = None
        self._occupied: Array | None = None
        self._position = np.zeros(self.size, np.intp)
        self._filled = np.zeros(self.size, np.intp)
        s = shape
        self._keys = np.zeros((s.layers, 0, 0, s.heads, s.head, BLOCK), np.float32)
        self._values = np.zeros((s.layers, 0, 0, s.heads, BLOCK, s.head), np.float32)
        self._mask = np.zeros((0, 0, 1, BLOCK), np.float32)
        """0 where a slot's tail [chunks, slots, 1, BLOCK] is filled, -inf where not."""

    def occupy(self, path: Sequence[Block]) -> int:
        """Take the lowest free slot for a prompt whose blocks are computed; returns it."""
        slot = self._pages.index(None)
        full = len(path) - (not path[-1].full)
        pages = max(0, full - OWN)
        own = path[pages:]
        self._grow(slot + 1, len(own))
        for chunk, block in enumerate(own):
            self._keys[:, chunk, slot] = block.keys
            self._values[:, chunk, slot] = block.values
            self._mask[chunk, slot, :, : len(block.tokens)] = 0
        self._pages[slot] = tuple(path[:pages])
        self._filled[slot] = sum(len(block.tokens) for block in own)
        self._position[slot] = pages * BLOCK + self._filled[slot]
        self._groups = self._occupied = None
        return slot

    def release(self, slot: int) -> None:
        """Free a slot."""
        self._pages[slot] = None
        self._filled[slot] = self._position[slot] = 0
        self._mask[:, slot] = -np.inf
        self._mask[0, slot, :, 0] = 0
        self._groups = self._occupied = None

    def advance(self, tokens: Array) -> Array:
        """Feed ``tokens`` (int [size], one a slot); returns the normed outputs [rows, width].

        Covers all slots up to the highest one occupied; free slots in between compute garbage.
        """
        s, w = self._shape, self._weights
        if self._occupied is None:
            held = [slot for slot, pages in enumerate(self._pages) if pages is not None]
            self._occupied = np.array(held)
        used = self._occupied
        live = int(used[-1]) + 1
        rows = -(-live // self._tile) * self._tile
        groups = self._page_groups(rows)
        if groups:
            live = rows  # pages are multiplied in whole tiles
        chunks = int(np.maximum.reduce(self._filled[:live])) // BLOCK + 1
        self._grow(rows, chunks)
        chunk, place = np.divmod(self._filled[:live], BLOCK)
        every = np.arange(live)
        self._mask[chunk, every, :, place] = 0  # the token being fed is in the tail when it is used
        factors = turns(s)[self._position[:rows]]
        mixed = np.zeros((rows, s.width), np.float32)
        x = w["embed"][tokens[:rows]]
        for layer in range(s.layers):
            qkv = tiled(norm(x)[0], w[f"layer{layer}.qkv"], self._tile)
            turn(qkv, factors)
            split = qkv[:live].reshape(live, 3, s.heads, s.head).transpose(1, 0, 2, 3)
            query, key, value = np.ascontiguousarray(split)
            self._keys[layer, chunk, every, :, :, place] = key
            self._values[layer, chunk, every, :, place] = value
            mixed[:live] = self._attend(query, groups, chunks, layer)
            x = x + tiled(mixed, w[f"layer{layer}.out"], self._tile)
            hidden = tiled(norm(x)[0], w[f"layer{layer}.up"], self._tile)
            np.maximum(hidden, 0, out=hidden)
            hidden *= hidden
            x += tiled(hidden, w[f"layer{layer}.down"], self._tile)
        self._filled[used] += 1
        self._position[used] += 1
        return norm(x)[0]

    def _attend(self, query: Array, groups: list["_PageGroups"], chunks: int, layer: int) -> Array:
        """Attention of ``query`` [rows, heads, head]; returns [rows, width]."""
        rows, heads, width = query.shape
        depth = len(groups)
        scores = np.empty((depth + chunks, rows, heads, BLOCK), np.float32)
        for page, group in enumerate(groups):
            group.scores(query, layer, scores[page])
        tail = scores[depth:]
        np.matmul(query[:, :, None], self._keys[layer, :chunks, :rows], out=tail[:, :, :, None])
        tail += self._mask[:chunks, :rows]
        scores -= np.maximum.reduce(np.maximum.reduce(scores, 0), -1, keepdims=True)
        np.exp(scores, out=scores)
        # The sum begins with what the pages add up to: 0 where there is none.
        parts = np.empty((1 + chunks, rows, heads, width), np.float32)
        parts[0] = 0
        for page, group in enumerate(groups):
            group.mix(scores[page], layer, parts[0])
        np.matmul(
            tail[:, :, :, None], self._values[layer, :chunks, :rows], out=parts[1:, :, :, None]
        )
        mixed = np.add.reduce(parts, 0)
        mixed /= np.add.reduce(np.add.reduce(scores, 0), -1, keepdims=True)
        return np.asarray(mixed.reshape(rows, heads * width))

    def _page_groups(self, rows: int) -> list["_PageGroups"]:
        if self._groups is None or (self._groups and self._groups[0].rows != rows):
            held = [pages or () for pages in self._pages[:rows]]
            deepest = max(len(pages) for pages in held)
            self._groups = [_PageGroups(held, depth, self._tile) for depth in range(deepest)]
        return self._groups

    def _grow(self, rows: int, chunks: int) -> None:
        """Make room for ``rows`` slots with ``chunks`` chunks in each one's tail."""
        s, keys, values, mask = self._shape, self._keys, self._values, self._mask
        had, slots = mask.shape[:2]
        if rows <= slots and chunks <= had:
            return
        # By more than is asked for, so that a long completion is not copied at every chunk.
        more = chunks if chunks <= had else max(chunks, had + had // 2)
        wider = slots if rows <= slots else max(-(-rows // self._tile) * self._tile, 2 * slots)
        chunks, rows = max(had, more), min(self.size, wider)
        self._keys = np.zeros((s.layers, chunks, rows, s.heads, s.head, BLOCK), np.float32)
        self._values = np.zeros((s.layers, chunks, rows, s.heads, BLOCK, s.head), np.float32)
        self._mask = np.full((chunks, rows, 1, BLOCK), -np.inf, np.float32)
        self._mask[0, :, :, 0] = 0
        self._keys[:, :had, :slots] = keys
        self._values[:, :had, :slots] = values
        self._mask[:had, :slots] = mask


class _PageGroups:
    """The rows that have a page at one depth, grouped by page in tiles of rows."""

    def __init__(self, held: Sequence[tuple[Block, ...]], depth: int, tile: int) -> None:
        self.rows, self._tile = len(held), tile
        by_page: dict[Block, list[int]] = {}
        for row, pages in enumerate(held):
            if depth < len(pages):
                by_page.setdefault(pages[depth], []).append(row)
        self._absent = np.array([depth >= len(pages) for pages in held])
        self._alone = next(iter(by_page)) if len(by_page) == 1 else None
        tiles: list[list[int]] = []
        self._tile_pages: list[Block] = []
        for page, rows in by_page.items():
            for start in range(0, len(rows), tile):
                tiles.append(rows[start : start + tile])
                self._tile_pages.append(page)
        # A tile that is not full repeats its first row; only true rows are read back.
        self._gather = np.array([(t + [t[0]] * tile)[:tile] for t in tiles]).ravel()
        self._true = np.concatenate(
            [tile * n + np.arange(len(rows)) for n, rows in enumerate(tiles)]
        )
        self._target = self._gather[self._true]
        self._stacks: dict[tuple[int, str], Array] = {}

    def scores(self, query: Array, layer: int, out: Array) -> None:
        """Write ``query`` . keys to ``out`` [rows, heads, BLOCK]; -inf where there is no page."""
        if self._alone is not None:
            np.matmul(self._tiles(query), self._alone.keys[layer], out=self._tiles(out))
            out[self._absent] = -np.inf
            return
        found = np.empty((len(self._gather), *out.shape[1:]), np.float32)
        np.matmul(
            self._tiles(query[self._gather]), self._stack(layer, "keys"), out=self._tiles(found)
        )
        out[...] = -np.inf
        out[self._target] = found[self._true]

    def mix(self, weights: Array, layer: int, out: Array) -> None:
        """Add ``weights`` @ values to ``out`` [rows, heads, head]."""
        if self._alone is not None:
            part = np.empty_like(out)
            np.matmul(self._tiles(weights), self._alone.values[layer], out=self._tiles(part))
            out += part
            return
        part = np.empty((len(self._gather), *out.shape[1:]), np.float32)
        np.matmul(
            self._tiles(weights[self._gather]), self._stack(layer, "values"), out=self._tiles(part)
        )
        out[self._target] += part[self._true]

    def _stack(self, layer: int, what: str) -> Array:
        key = (layer, what)
        if key not in self._stacks:
            self._stacks[key] = stacked(self._tile_pages, layer, what)
        return self._stacks[key]

    def _tiles(self, rows: Array) -> Array:
        """[rows, heads, n] seen as [tiles, heads, rows of a tile, n], without a copy."""
        count, heads, width = rows.shape
        return rows.reshape(count // self._tile, self._tile, heads, width).transpose(0, 2, 1, 3)
