"""The pieces every path shares: RMSNorm, rotary positions, the MLP's nonlinearity.

RMSNorm (Zhang & Sennrich 2019) without gain: y = x / sqrt(mean(x^2) + eps).
RoPE (Su et al. 2021): the pair (x_i, x_{i + half}) of a head is turned by the angle
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
    inverse = square.mean(-1, keepdims=True)
    inverse += EPS
    np.sqrt(inverse, out=inverse)
    np.reciprocal(inverse, out=inverse)
    return np.multiply(x, inverse, out=square), inverse


def norm_backward(grad: Array, y: Array, inverse: Array) -> Array:
    """dx of y = x * inverse(x): inverse * (grad - y * mean(grad * y)), as y = x * inverse."""
    mean = np.multiply(grad, y).mean(-1, keepdims=True)
    dx = np.multiply(y, mean)
    np.subtract(grad, dx, out=dx)
    dx *= inverse
    return dx


@lru_cache(maxsize=8)
def rope_table(shape: Shape, dtype: str = "float32") -> tuple[Array, Array]:
    """cos and sin [context, head / 2] of every position's angles."""
    half = shape.head // 2
    rates = ROPE_BASE ** (-np.arange(half) / half)
    angles = np.arange(shape.context)[:, None] * rates
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Turn the pairs of ``x`` [..., head]; ``cos`` and ``sin`` broadcast as [..., head / 2].

    Turning by the negative angle (-sin) is the inverse and the backward pass.
    """
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    turned = np.empty_like(x)
    np.multiply(low, cos, out=turned[..., :half])
    turned[..., :half] -= high * sin
    np.multiply(high, cos, out=turned[..., half:])
    turned[..., half:] += low * sin
    return turned


def log_normalizer(logits: Array) -> Array:
    """log sum exp over the last axis, shape [..., 1]; subtract it to get logprobs."""
    top = logits.max(-1, keepdims=True)
    spread = np.subtract(logits, top)
    np.exp(spread, out=spread)
    total = np.log(spread.sum(-1, keepdims=True))
    total += top
    return np.asarray(total)
