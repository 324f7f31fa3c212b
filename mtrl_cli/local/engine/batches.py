"""How a training batch is cut: common prefix, repeated sequences, micro-batches.

Chat prompts share a long preamble, and the members of a group often say the same words, so a
batch holds much less than its token count suggests:

1. the longest prefix that all sequences share is computed once (``transformer``),
2. sequences equal in tokens and targets are computed once; their loss slopes are summed,
3. the rest is sorted by length and cut into micro-batches that fit the processor's cache.

The cut depends on the batch alone, never on timing, so results repeat bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtrl_cli.local.engine.losses import needed_inputs
from mtrl_cli.local.engine.types import Array, Datum, LossName, Shape

MICRO_BATCH_TOKENS = 384
"""Padded tokens in a micro-batch: measured optimum on a processor with 512 KiB of L2 a core."""


@dataclass(frozen=True)
class Row:
    """One distinct sequence, and which of the batch's data are it."""

    tokens: Array
    targets: Array
    members: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """``prefix`` tokens that all rows begin with, and the rows in micro-batches."""

    prefix: Array
    batches: tuple[tuple[Row, ...], ...]


def plan(data: Sequence[Datum]) -> Plan:
    """Cut ``data`` (valid and not empty); every row keeps at least one token after the prefix."""
    members: dict[bytes, list[int]] = {}
    for index, datum in enumerate(data):
        key = datum.tokens.tobytes() + datum.inputs["target_tokens"].tobytes()
        members.setdefault(key, []).append(index)
    rows = [
        Row(data[group[0]].tokens, data[group[0]].inputs["target_tokens"], tuple(group))
        for group in members.values()
    ]
    shared = common_prefix([row.tokens for row in rows])
    rows.sort(key=lambda row: (-len(row.tokens), row.members[0]))
    batches: list[list[Row]] = []
    for row in rows:
        # Rows come longest first: a batch's padded length is that of its first row.
        fits = batches and (
            (len(batches[-1]) + 1) * (len(batches[-1][0].tokens) - shared) <= MICRO_BATCH_TOKENS
        )
        if fits:
            batches[-1].append(row)
        else:
            batches.append([row])
    return Plan(rows[0].tokens[:shared], tuple(tuple(batch) for batch in batches))


def common_prefix(sequences: Sequence[Array]) -> int:
    """Tokens that all ``sequences`` begin with; 0 for a single one, and never a whole one."""
    if len(sequences) < 2:
        return 0
    limit = min(len(sequence) for sequence in sequences) - 1
    first = sequences[0][:limit]
    for sequence in sequences[1:]:
        differs = first != sequence[: len(first)]
        if differs.any():
            first = first[: int(differs.argmax())]
    return len(first)


def padded(batch: Sequence[Row], start: int) -> Array:
    """The rows' tokens from ``start`` on as a rectangle, padded with token 0 at the right."""
    out = np.zeros((len(batch), max(len(row.tokens) for row in batch) - start), np.intp)
    for place, row in zip(out, batch, strict=True):
        place[: len(row.tokens) - start] = row.tokens[start:]
    return out


def checked(shape: Shape, data: Sequence[Datum], loss: LossName | None) -> list[Datum]:
    """``data`` with canonical dtypes; ValueError names the first datum that cannot be used.

    ``loss`` None asks for tokens and targets only (a forward pass).
    """
    if not data:
        raise ValueError("no data: send at least one datum")
    floats = needed_inputs(loss) if loss else ()
    done = []
    for index, datum in enumerate(data):
        length = len(datum.tokens)
        if not 1 <= length <= shape.context:
            raise ValueError(f"datum {index}: {length} tokens, allowed are 1 to {shape.context}")
        inputs = {}
        for name in ("target_tokens", *floats):
            if name not in datum.inputs:
                raise ValueError(f"datum {index}: loss input {name} is missing")
            value = np.asarray(datum.inputs[name])
            if value.shape != (length,):
                raise ValueError(
                    f"datum {index}: {name} has shape {value.shape}, expected ({length},)"
                )
            inputs[name] = value.astype(np.int32 if name == "target_tokens" else np.float64)
            if not np.isfinite(inputs[name]).all():
                raise ValueError(f"datum {index}: {name} is not finite")
        tokens = np.asarray(datum.tokens, np.int32)
        for name, ids in (("tokens", tokens), ("target_tokens", inputs["target_tokens"])):
            if ids.min() < 0 or ids.max() >= shape.vocab:
                raise ValueError(f"datum {index}: {name} outside the vocabulary of {shape.vocab}")
        done.append(Datum(tokens, inputs))
    return done
