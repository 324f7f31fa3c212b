"""How many rows a matrix product may have so that BLAS treats them all alike.

A row of x @ W depends on that row and W only, mathematically. In floating point it also depends
on where in x the row stands: BLAS works through x with kernels of different heights (OpenBLAS on
AVX2: six rows, then what is left), and these add in different orders. Within a small enough tile
all rows go through the same kernel. How small depends on processor and BLAS build, so it is
measured, once a process, on the very shapes that are used.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from mtrl_cli.local.engine.blocks import BLOCK
from mtrl_cli.local.engine.types import Array, Shape
from mtrl_cli.local.engine.weights import shapes

Draw: TypeAlias = Callable[..., Array]
CANDIDATES = (16, 8, 4, 2)


@lru_cache(maxsize=8)
def row_tile(shape: Shape) -> int:
    """The largest tile whose rows are interchangeable bit for bit, in all decoding products."""
    rng = np.random.default_rng(0)

    def draw(*size: int) -> Array:
        return rng.standard_normal(size).astype(np.float32)

    factors = [draw(rows, columns) for rows, columns in shapes(shape).values()]
    factors[0] = factors[0].T  # the head multiplies by the transposed token matrix
    factors += [draw(shape.head, BLOCK), draw(BLOCK, shape.head)]
    return next(
        (tile for tile in CANDIDATES if all(_alike(tile, factor, draw) for factor in factors)), 1
    )


def _alike(tile: int, factor: Array, draw: Draw) -> bool:
    """Whether one row, put at every place of a tile among others, gives the same product."""
    row = draw(len(factor))
    found = []
    for place in range(tile):
        rows = draw(1, tile, len(factor))
        rows[0, place] = row
        found.append((rows @ factor)[0, place])
    return all(np.array_equal(found[0], other) for other in found)


def tiled(x: Array, matrix: Array, tile: int) -> Array:
    """x [n, k] @ matrix [k, m], in tiles of ``tile`` rows (the last one padded)."""
    count = len(x)
    if count % tile:
        x = np.concatenate([x, np.zeros((-count % tile, x.shape[1]), x.dtype)])
    product = x.reshape(-1, tile, x.shape[1]) @ matrix
    return np.asarray(product.reshape(len(x), -1)[:count])
