"""One pass of the transformer over a rectangle of tokens, and its backward pass, written out.

    x = embed[tokens]
    each layer:  x += attention(norm(x)) @ out ;  x += relu(norm(x) @ up)^2 @ down
    y = norm(x) ;  logits = y @ embed.T

A *segment* is a rectangle [rows, length] of sequences padded at the right. Its rows may continue
a common prefix whose keys and values were computed before (by a segment of one row): they
attend to all of the prefix and causally to themselves. The backward pass then yields the
gradients of the prefix's keys and values as well, to be summed over all segments that used them
and fed into the prefix's own backward pass. So a prefix costs one row, however many share it.

Padding needs no mask: it is at the right, and attention is causal.

Array names: N = rows * length positions, H heads, h head width, p prefix length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtrl_cli.local.engine.ops import norm, norm_backward, turn, turns
from mtrl_cli.local.engine.types import Array, Shape, Weights


@dataclass(frozen=True)
class KeysValues:
    """Keys (turned) and values of a prefix in one layer, each [H, p, h]."""

    keys: Array
    values: Array


@dataclass(frozen=True)
class LayerTape:
    """What the backward pass of one layer needs."""

    normed_in: Array  # [N, width], input of qkv
    inverse_in: Array  # [N, 1]
    query: Array  # [H, rows, length, h], turned and scaled
    key: Array  # turned
    value: Array
    attention: Array  # [H, rows, length, p + length], after the softmax
    mixed: Array  # [H, rows, length, h], attention @ values
    normed_mid: Array  # [N, width], input of up
    inverse_mid: Array
    hidden: Array  # [N, 4 * width], relu(normed_mid @ up)


@dataclass(frozen=True)
class Tape:
    """A segment's forward pass: ``output`` [N, width] and all that its backward pass needs."""

    tokens: Array  # [rows, length]
    offset: int
    layers: tuple[LayerTape, ...]
    output: Array
    inverse: Array

    def as_prefix(self) -> list[KeysValues]:
        """This segment's keys and values, for segments that continue it (one row only)."""
        return [KeysValues(tape.key[:, 0], tape.value[:, 0]) for tape in self.layers]


def forward(
    shape: Shape, weights: Weights, tokens: Array, prefix: Sequence[KeysValues] = ()
) -> Tape:
    """Run ``tokens`` [rows, length], which follow ``prefix`` (one entry a layer, or none)."""
    rows, length = tokens.shape
    offset = prefix[0].keys.shape[1] if prefix else 0
    x = weights["embed"][tokens.ravel()]
    factors = turns(shape, x.dtype.name)[offset : offset + length]
    future = np.triu(np.full((length, length), -np.inf, x.dtype), 1)
    tapes = []
    for layer in range(shape.layers):
        normed_in, inverse_in = norm(x)
        qkv = (normed_in @ weights[f"layer{layer}.qkv"]).reshape(rows, length, -1)
        turn(qkv, factors)
        split = qkv.reshape(rows, length, 3, shape.heads, shape.head).transpose(2, 3, 0, 1, 4)
        query, key, value = np.ascontiguousarray(split)
        before = prefix[layer] if prefix else None
        attention = _attention(query, key, before, future)
        mixed = _mix(attention, value, before)
        x = x + _join(mixed) @ weights[f"layer{layer}.out"]
        normed_mid, inverse_mid = norm(x)
        hidden = normed_mid @ weights[f"layer{layer}.up"]
        np.maximum(hidden, 0, out=hidden)
        x += (hidden * hidden) @ weights[f"layer{layer}.down"]
        tapes.append(
            LayerTape(
                normed_in, inverse_in, query, key, value, attention, mixed,
                normed_mid, inverse_mid, hidden,
            )
        )  # fmt: skip
    output, inverse = norm(x)
    return Tape(tokens, offset, tuple(tapes), output, inverse)


def backward(
    shape: Shape,
    weights: Weights,
    tape: Tape,
    grad: Array,
    gradients: dict[str, Array],
    prefix: Sequence[KeysValues] = (),
    continued: Sequence[KeysValues] = (),
) -> list[KeysValues]:
    """Add the gradients of all matrices to ``gradients``; return those of the prefix.

    ``grad`` [N, width] is d loss / d output. ``prefix`` is what ``forward`` was given.
    ``continued`` (one entry a layer) is what segments that continue this one returned, summed.
    The head's share of the ``embed`` gradient is the caller's.
    """
    rows, length = tape.tokens.shape
    factors = turns(shape, grad.dtype.name)[tape.offset : tape.offset + length].conj()
    into_prefix = []
    dx = norm_backward(grad, tape.output, tape.inverse)
    for layer in reversed(range(shape.layers)):
        t = tape.layers[layer]
        up, down = weights[f"layer{layer}.up"], weights[f"layer{layer}.down"]
        gradients[f"layer{layer}.down"] += (t.hidden * t.hidden).T @ dx
        dhidden = dx @ down.T
        dhidden *= t.hidden
        dhidden *= 2
        gradients[f"layer{layer}.up"] += t.normed_mid.T @ dhidden
        dx += norm_backward(dhidden @ up.T, t.normed_mid, t.inverse_mid)

        gradients[f"layer{layer}.out"] += _join(t.mixed).T @ dx
        dmixed = _split(dx @ weights[f"layer{layer}.out"].T, rows, shape)
        before = prefix[layer] if prefix else None
        dquery, dkey, dvalue, dbefore = _attention_backward(t, dmixed, before)
        if dbefore is not None:
            into_prefix.append(dbefore)
        if continued:
            dkey[:, 0] += continued[layer].keys
            dvalue[:, 0] += continued[layer].values
        dqkv = np.empty((rows, length, 3, shape.heads, shape.head), grad.dtype)
        parts = dqkv.transpose(2, 3, 0, 1, 4)
        parts[0], parts[1], parts[2] = dquery, dkey, dvalue
        turn(dqkv.reshape(rows, length, -1), factors)
        flat = dqkv.reshape(rows * length, 3 * shape.width)
        gradients[f"layer{layer}.qkv"] += t.normed_in.T @ flat
        dx += norm_backward(flat @ weights[f"layer{layer}.qkv"].T, t.normed_in, t.inverse_in)
    np.add.at(gradients["embed"], tape.tokens.ravel(), dx)
    return into_prefix[::-1]


def _join(heads: Array) -> Array:
    """[H, rows, length, h] to [N, width]."""
    count, rows, length, width = heads.shape
    return heads.transpose(1, 2, 0, 3).reshape(rows * length, count * width)


def _split(flat: Array, rows: int, shape: Shape) -> Array:
    """[N, width] to [H, rows, length, h], contiguous."""
    parts = flat.reshape(rows, -1, shape.heads, shape.head).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(parts)


def _flat(heads: Array) -> Array:
    """[H, rows, length, n] to [H, rows * length, n]: one matrix a head over all rows."""
    return heads.reshape(heads.shape[0], -1, heads.shape[-1])


def _attention(query: Array, key: Array, before: KeysValues | None, future: Array) -> Array:
    """Softmax of the scores, first the prefix's columns, then the segment's own."""
    start = before.keys.shape[1] if before else 0
    heads, rows, length, _ = query.shape
    scores = np.empty((heads, rows, length, start + length), query.dtype)
    if before:
        np.matmul(_flat(query), before.keys.swapaxes(1, 2), out=_flat(scores)[..., :start])
    own = scores[..., start:]
    np.matmul(query, key.swapaxes(2, 3), out=own)
    own += future
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def _mix(attention: Array, value: Array, before: KeysValues | None) -> Array:
    """attention @ values, over prefix and segment."""
    start = attention.shape[-1] - value.shape[2]
    mixed = np.asarray(attention[..., start:] @ value)
    if before:
        mixed += (_flat(attention)[..., :start] @ before.values).reshape(mixed.shape)
    return mixed


def _attention_backward(
    tape: LayerTape, dmixed: Array, before: KeysValues | None
) -> tuple[Array, Array, Array, KeysValues | None]:
    """Gradients of query, key, value, and of the prefix's keys and values.

    Softmax: dscore = p * (dp - sum(dp * p)), and that sum is dmixed . mixed, because
    mixed = p @ values and dp = dmixed @ values.T (the trick of FlashAttention).
    """
    start = tape.attention.shape[-1] - tape.value.shape[2]
    dscores = np.empty_like(tape.attention)
    np.matmul(dmixed, tape.value.swapaxes(2, 3), out=dscores[..., start:])
    if before:
        np.matmul(_flat(dmixed), before.values.swapaxes(1, 2), out=_flat(dscores)[..., :start])
    dscores -= (dmixed * tape.mixed).sum(-1, keepdims=True)
    dscores *= tape.attention
    own, own_p = dscores[..., start:], tape.attention[..., start:]
    dquery = np.asarray(own @ tape.key)
    dkey = np.asarray(own.swapaxes(2, 3) @ tape.query)
    dvalue = np.asarray(own_p.swapaxes(2, 3) @ dmixed)
    if not before:
        return dquery, dkey, dvalue, None
    far, far_p = _flat(dscores)[..., :start], _flat(tape.attention)[..., :start]
    dquery += (far @ before.keys).reshape(dquery.shape)
    dkeys, dvalues = far.swapaxes(1, 2) @ _flat(tape.query), far_p.swapaxes(1, 2) @ _flat(dmixed)
    return dquery, dkey, dvalue, KeysValues(dkeys, dvalues)
