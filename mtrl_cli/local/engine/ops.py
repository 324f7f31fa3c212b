"""The pieces every path shares: RMSNorm, rotary positions, the MLP's nonlinearity.

RMSNorm (Zhang & Sennrich 2019) without gain: y = x / sqrt(mean(x^2) + eps).
RoPE (Su et al. 2021): pair i of a head's numbers, (x_2i, x_2i+1), is turned by the angle
position * 10000^(-i / half), so that query . key depends on the distance only.
ReLU^2 (So et al. 2021): y = max(x, 0)^2.
"""

from functools import lru_cache

import numpy as np

from mtrl_cli.local.engine.types import Array, Shape

EPS = 1e-6
ROPE_BASE = 10_000.0


def norm(x: Array) -> tuple[Array, Array]:
    """RMSNorm over the last axis; returns y and 1 / rms (kept for the backward pass)."""
    square = np.multiply(x, x)
    inverse = np.add.reduce(square, -1, keepdims=True)
    inverse /= x.shape[-1]
    inverse += EPS
    np.sqrt(inverse, out=inverse)
    np.reciprocal(inverse, out=inverse)
    return np.multiply(x, inverse, out=square), inverse


def norm_backward(grad: Array, y: Array, inverse: Array) -> Array:
    """dx of y = x * inverse(x): inverse * (grad - y * mean(grad * y)), as y = x * inverse."""
    dx = np.multiply(grad, y)
    mean = np.add.reduce(dx, -1, keepdims=True)
    mean /= y.shape[-1]
    np.multiply(y, mean, out=dx)
    np.subtract(grad, dx, out=dx)
    dx *= inverse
    return dx


@lru_cache(maxsize=8)
def turns(shape: Shape, dtype: str = "float32") -> Array:
    """The complex factors that turn queries and keys: [context, width], read-only.

    A pair of floats is one complex number and turning it one product. Row t holds the factors
    of position t for all heads' queries (width / 2 of them, which also carry the 1 / sqrt(head)
    of the scores) and then for all heads' keys.
    """
    half = shape.head // 2
    rates = ROPE_BASE ** (-np.arange(half) / half)
    factors = np.exp(1j * np.arange(shape.context)[:, None] * rates)
    keys = np.tile(factors, (1, shape.heads))
    both = np.concatenate([keys * shape.head**-0.5, keys], axis=1)
    both = both.astype(np.result_type(dtype, np.complex64))
    both.flags.writeable = False
    return both


def turn(qkv: Array, factors: Array) -> None:
    """Multiply the query and key columns of ``qkv`` [..., 3 * width] by ``factors``, in place.

    With the conjugate factors this is the backward pass.
    """
    paired = qkv.view(factors.dtype)[..., : factors.shape[-1]]
    paired *= factors


def log_normalizer(logits: Array) -> Array:
    """log sum exp over the last axis, shape [..., 1]; subtract it to get logprobs."""
    top = logits.max(-1, keepdims=True)
    spread = np.subtract(logits, top)
    np.exp(spread, out=spread)
    total = np.add.reduce(spread, -1, keepdims=True)
    np.log(total, out=total)
    total += top
    return np.asarray(total)
