"""One step's gradient from several forward/backward calls.

The datums are cut, in order, into calls of at most ``max_tokens`` tokens each; all of them are
complete before the optimizer step is sent. A failure in the middle is the caller's end: what was
accumulated is never stepped, and goes with the server-side model. A datum is never cut, so one
that is larger than the bound is refused.

A batch's weights (see `weighting`) are those of the whole step, and mean that the server sums. A
server that averages is made up for, exactly, by a factor on each datum's advantages, which every
loss here is proportional to. With N datums in the step, C calls, and T positions of the datum,
the factor is

    sum         1
    datum_mean  N · T
    call_mean   C
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.servers.interface import Datum, ForwardBackwardResult, LossReduction, LossSpec
from mtrl_cli.training.operations import TrainingError
from mtrl_cli.training.step.batch import Batch


class ForwardBackward(Protocol):
    """`Operations`, as far as it is used here."""

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossSpec
    ) -> ForwardBackwardResult: ...


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The results of a step's calls. ``loss`` is the step's, in the server's own reduction: the
    sum of the calls' losses, or their mean where it averages over the calls. ``logprobs`` are in
    the batch's order and of the trainer, one array [T] per datum."""

    loss: float
    logprobs: Sequence[NDArray[np.float32]]
    calls: int


async def accumulate(
    operations: ForwardBackward,
    batch: Batch,
    loss: LossSpec,
    reduction: LossReduction | None,
    max_tokens: int | None = None,
) -> Accumulated:
    """Send a batch's forward/backward calls, one after the other.

    Raises:
        TrainingError: a datum is larger than ``max_tokens``, or several calls cannot be weighted
            because the server's reduction is not known; nothing was sent. Also what
            `Operations.forward_backward` raises.
    """
    results = [
        await operations.forward_backward(data, loss)  # one after the other
        for data in calls_of(batch, reduction, max_tokens)
    ]
    loss_of_step = sum(result.loss for result in results)
    return Accumulated(
        loss_of_step / len(results) if reduction == "call_mean" else loss_of_step,
        [row for result in results for row in result.logprobs],
        len(results),
    )


def calls_of(
    batch: Batch, reduction: LossReduction | None, max_tokens: int | None = None
) -> list[list[Datum]]:
    """The datums of each call, weighted for the server; see the module's docstring."""
    cuts = _cut([len(datum.tokens) for datum in batch.data], max_tokens)
    if len(cuts) > 1 and reduction is None:
        raise TrainingError(
            "several forward/backward calls cannot be weighted on a server whose loss reduction "
            "is not known: set server.loss_reduction, or train.max_tokens_per_call=0"
        )
    return [
        [
            _scaled(batch.data[index], factor)
            for index in cut
            for factor in [_factor(batch, index, reduction, len(cuts))]
        ]
        for cut in cuts
    ]


def _cut(lengths: Sequence[int], max_tokens: int | None) -> list[range]:
    """Consecutive indices whose lengths stay within ``max_tokens`` together."""
    if not max_tokens:
        return [range(len(lengths))]
    cuts: list[range] = []
    start = total = 0
    for index, length in enumerate(lengths):
        if length > max_tokens:
            raise TrainingError(
                f"datum {index} has {length} tokens, more than train.max_tokens_per_call "
                f"({max_tokens}), and a trajectory is not cut; nothing was sent"
            )
        if total + length > max_tokens:
            cuts.append(range(start, index))
            start, total = index, 0
        total += length
    return [*cuts, range(start, len(lengths))]


def _factor(batch: Batch, index: int, reduction: LossReduction | None, calls: int) -> int:
    match reduction:
        case "datum_mean":
            return len(batch.data) * len(batch.data[index].targets)
        case "call_mean":
            return calls
        case _:
            return 1


def _scaled(datum: Datum, factor: int) -> Datum:
    return (
        datum if factor == 1 else replace(datum, advantages=datum.advantages * np.float32(factor))
    )
