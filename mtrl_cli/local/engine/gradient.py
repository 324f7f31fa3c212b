"""Loss and gradients of a whole batch: the plan executed on two threads.

Numpy releases the interpreter lock inside its kernels, so two threads over micro-batches use two
cores; BLAS itself must run single-threaded (``OPENBLAS_NUM_THREADS=1`` before numpy is
imported), as its own threads fight over matrices this small. Worker w takes micro-batches
w, w + 2, ... and adds its gradients up in that order; the workers' sums are then added in worker
order. So the result does not depend on which thread was faster.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from mtrl_cli.local.engine import batches, transformer
from mtrl_cli.local.engine.losses import clip_range, loss_and_slope
from mtrl_cli.local.engine.transformer import KeysValues
from mtrl_cli.local.engine.types import Array, Datum, LossName, Shape, Weights

WORKERS = 2
_pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="mtrl-gradient")

Slope = Callable[[int, int, Array], Array]
"""(datum, first position, logprobs) to d loss / d logprob of those positions."""


@dataclass
class _Sum:
    """One worker's running sums."""

    gradients: dict[str, Array]
    into_prefix: list[KeysValues] = field(default_factory=list)

    def add_into_prefix(self, parts: list[KeysValues]) -> None:
        if not self.into_prefix:
            self.into_prefix = parts
            return
        for total, part in zip(self.into_prefix, parts, strict=True):
            total.keys[...] += part.keys
            total.values[...] += part.values


def logprobs(shape: Shape, weights: Weights, data: Sequence[Datum]) -> list[Array]:
    """Logprob of every target token, one array [T] a datum."""
    found, _gradients = _run(shape, weights, batches.checked(shape, data, None), None)
    return found


def loss_and_gradients(
    shape: Shape,
    weights: Weights,
    data: Sequence[Datum],
    loss: LossName,
    config: Mapping[str, float],
) -> tuple[float, list[Array], dict[str, Array]]:
    """Summed loss, logprobs of the targets, and the gradients of all matrices.

    Raises ValueError on data or configuration that the loss cannot use.
    """
    clip = clip_range(loss, config)
    data = batches.checked(shape, data, loss)
    losses: list[list[float]] = [[] for _ in data]

    def slope(index: int, start: int, logp: Array) -> Array:
        stop = start + len(logp)
        inputs = {name: value[start:stop] for name, value in data[index].inputs.items()}
        terms, slopes = loss_and_slope(loss, logp, inputs, clip)
        losses[index].append(float(terms.sum(dtype=np.float64)))
        return slopes

    found, gradients = _run(shape, weights, data, slope)
    assert gradients is not None
    return sum(sum(parts) for parts in losses), found, gradients


def _run(
    shape: Shape, weights: Weights, data: list[Datum], slope: Slope | None
) -> tuple[list[Array], dict[str, Array] | None]:
    cut = batches.plan(data)
    dtype = weights["embed"].dtype
    found = [np.empty(len(datum.tokens), dtype) for datum in data]
    start = len(cut.prefix)
    root, dprefix_out, prefix = None, None, []
    sums = [_Sum(_zeros(weights) if slope else {}) for _ in range(WORKERS)]
    if start:
        root = transformer.forward(shape, weights, cut.prefix[None])
        prefix = root.as_prefix()
        everyone = [
            (index, slice(0, start), datum.inputs["target_tokens"][:start], 0)
            for index, datum in enumerate(data)
        ]
        dprefix_out = _head(weights, root.output, everyone, found, slope, sums[0])

    def work(worker: int) -> None:
        for batch in cut.batches[worker::WORKERS]:
            tape = transformer.forward(shape, weights, batches.padded(batch, start), prefix)
            length = tape.tokens.shape[1]
            entries = [
                (index, slice(place * length, place * length + len(row.tokens) - start),
                 row.targets[start:], start)
                for place, row in enumerate(batch)
                for index in row.members
            ]  # fmt: skip
            grad = _head(weights, tape.output, entries, found, slope, sums[worker])
            if slope is not None and grad is not None:
                sums[worker].add_into_prefix(
                    transformer.backward(shape, weights, tape, grad, sums[worker].gradients, prefix)
                )

    for done in [_pool.submit(work, worker) for worker in range(WORKERS)]:
        done.result()
    if slope is None:
        return found, None
    total = sums[0]
    for other in sums[1:]:
        for name, value in other.gradients.items():
            total.gradients[name] += value
        if other.into_prefix:
            total.add_into_prefix(other.into_prefix)
    if root is not None and (dprefix_out is not None or total.into_prefix):
        grad = dprefix_out if dprefix_out is not None else np.zeros_like(root.output)
        transformer.backward(
            shape, weights, root, grad, total.gradients, continued=total.into_prefix
        )
    return found, total.gradients


def _zeros(weights: Weights) -> dict[str, Array]:
    return {name: np.zeros_like(value) for name, value in weights.items()}


def _head(
    weights: Weights,
    output: Array,
    entries: Sequence[tuple[int, slice, Array, int]],
    found: list[Array],
    slope: Slope | None,
    into: _Sum,
) -> Array | None:
    """Logprobs of all entries and, with ``slope``, d loss / d output (None if all zero).

    An entry is (datum, its positions in ``output``, their targets, its first position). Several
    entries may cover the same positions; with z the logits and s_e the slope of entry e,
    d loss / dz = sum_e s_e * (onehot(target_e) - softmax(z)).
    """
    embed = weights["embed"]
    logits = output @ embed.T
    logits -= np.maximum.reduce(logits, -1, keepdims=True)
    spread = np.exp(logits)
    total = np.add.reduce(spread, -1)
    normalizer = np.log(total)
    slopes = np.zeros(len(output), output.dtype)
    hits: list[tuple[Array, Array, Array]] = []
    for index, where, targets, first in entries:
        positions = np.arange(where.start, where.stop)
        logp = logits[positions, targets] - normalizer[where]
        found[index][first : first + len(logp)] = logp
        if slope is not None:
            slopes_here = slope(index, first, logp)
            slopes[where] += slopes_here
            hits.append((positions, targets, slopes_here))
    if slope is None:
        return None
    active = np.zeros(len(output), bool)
    for positions, _targets, slopes_here in hits:
        active[positions[slopes_here != 0]] = True
    chosen = np.flatnonzero(active)
    if not len(chosen):
        return None
    place = np.cumsum(active) - 1
    every = len(chosen) == len(output)
    dlogits = spread if every else spread[chosen]
    dlogits *= (-slopes / total)[chosen, None]
    for positions, targets, slopes_here in hits:
        live = slopes_here != 0
        dlogits[place[positions[live]], targets[live]] += slopes_here[live]
    into.gradients["embed"] += dlogits.T @ (output if every else output[chosen])
    if every:
        return np.asarray(dlogits @ embed)
    grad = np.zeros_like(output)
    grad[chosen] = dlogits @ embed
    return grad
