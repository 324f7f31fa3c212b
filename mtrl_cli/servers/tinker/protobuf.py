"""Protobuf bodies of the Tinker API: the same functions as `codec` has for JSON.

Only what holds arrays is protobuf in any version of the API: the request of a forward/backward
pass, and the results of a pass and of a sample. Arrays go to and from bytes whole, so a batch
costs no loop over its tokens.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import Sample
from mtrl_cli.servers.interface import Datum, ForwardBackwardResult, LossSpec
from mtrl_cli.servers.tinker.codec import MalformedReply, checked_prompt_logprobs
from mtrl_cli.servers.wording import one_line
from mtrl_cli.wire import tinker_messages as wire

_BFLOAT16 = 4
_STOP_REASONS: dict[int, Literal["stop", "length"]] = {wire.STOP: "stop", wire.LENGTH: "length"}


# --- requests -------------------------------------------------------------------------------


def forward_backward_body(
    model: str, seq: int, data: Sequence[Datum], loss: LossSpec, *, forward_only: bool = False
) -> bytes:
    request = wire.new("ForwardBackwardRequest")
    request.model_id = model
    request.seq_id = seq
    request.loss_fn = loss.name
    for name, value in loss.config.items():
        request.loss_fn_config[name] = float(value)
    if forward_only:
        request.forward_only = True
    for datum in data:
        sent = request.data.add()
        sent.model_input.add().encoded_text.tokens = _bytes(datum.tokens, "<i4")
        inputs = sent.loss_fn_inputs
        _tensor(inputs["target_tokens"], datum.targets, wire.INT64)
        _tensor(inputs["logprobs"], datum.logprobs, wire.FLOAT32)
        _tensor(inputs["advantages"], datum.advantages, wire.FLOAT32)
    body: bytes = request.SerializeToString(deterministic=True)
    return body


def _tensor(tensor: Any, values: NDArray[Any], dtype: int) -> None:
    tensor.dense = _bytes(values, wire.DTYPES[dtype])
    tensor.dtype = dtype
    tensor.shape.append(len(values))


def _bytes(values: NDArray[Any], dtype: str) -> bytes:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


# --- results --------------------------------------------------------------------------------


def sample_of(body: bytes) -> Sample:
    """The one sequence of a finished ``asample``."""
    response = _read("SampleResponse", body)
    if len(response.sequences) != 1:
        raise MalformedReply(f"expected one sequence in the sample, got {len(response.sequences)}")
    sequence = response.sequences[0]
    stop_reason = _STOP_REASONS.get(sequence.stop_reason)
    if stop_reason is None:
        raise MalformedReply(f"the stop reason is {sequence.stop_reason}; known are 0 and 1")
    tokens = _array(sequence.tokens, "<i4", "the sampled tokens")
    if tokens.size and int(tokens.min()) < 0:
        raise MalformedReply("a sampled token id is out of range")
    return Sample(
        tokens=tokens.tolist(),
        logprobs=_array(sequence.logprobs, "<f4", "logprobs").tolist(),
        stop_reason=stop_reason,
        policy=response.weights if response.HasField("weights") else None,
    )


def prompt_logprobs_of(body: bytes, length: int) -> NDArray[np.float32]:
    """Logprobs of a prompt of ``length`` tokens; the first is NaN."""
    response = _read("SampleResponse", body)
    return checked_prompt_logprobs(
        _array(response.prompt_logprobs, "<f4", "prompt_logprobs"), length
    )


def forward_backward_of(body: bytes) -> ForwardBackwardResult:
    output = _read("ForwardBackwardOutput", body)
    metrics = {
        one_line(name, 100): float(value)
        for name, value in output.metrics.items()
        if math.isfinite(value)
    }
    records = output.loss_fn_outputs
    loss = metrics.get("loss:sum")
    if loss is None:
        key = next(
            (
                key
                for key in ("elementwise_loss", "loss")
                if records and all(key in record.fields for record in records)
            ),
            None,
        )
        if key is None:
            raise MalformedReply(f"the reply holds no loss; its metrics are {sorted(metrics)}")
        with np.errstate(invalid="ignore"):  # whether it is finite is asked by the caller
            loss = float(sum(row.sum(dtype=np.float64) for row in _rows(records, key)))
    return ForwardBackwardResult(
        loss=loss, logprobs=list(_rows(records, "logprobs")), metrics=metrics
    )


def _rows(records: Any, key: str) -> Iterator[NDArray[np.float32]]:
    """One array per datum, in order."""
    for record in records:
        if key not in record.fields:
            raise MalformedReply(f"a record of loss_fn_outputs has no {key!r}")
        batched = record.fields[key]
        values = _floats(batched.data, batched.dtype, key)
        width = 2 if batched.dtype == _BFLOAT16 else np.dtype(wire.DTYPES[batched.dtype]).itemsize
        edges = _array(batched.offsets, "<i8", f"the offsets of {key}")
        well = (
            len(edges) > 0
            and edges[0] == 0
            and edges[-1] == len(batched.data)
            and not (edges % width).any()
            and not (np.diff(edges) < 0).any()
        )
        if not well:
            raise MalformedReply(f"the offsets of {key} do not cut its data into datums")
        places = (edges // width).tolist()
        for start, end in itertools.pairwise(places):
            yield values[start:end]


def _floats(data: bytes, dtype: int, name: str) -> NDArray[np.float32]:
    if dtype == _BFLOAT16:  # the upper half of a float32
        halves = _array(data, "<u2", name)
        return (halves.astype(np.uint32) << 16).view(np.float32)
    known = wire.DTYPES.get(dtype)
    if known is None:
        raise MalformedReply(f"{name} has the dtype {dtype}; known are 1, 2, 3 and 4")
    return _array(data, known, name).astype(np.float32, copy=False)


def _array(data: bytes, dtype: str, name: str) -> NDArray[Any]:
    try:
        return np.frombuffer(data, dtype=dtype)
    except ValueError:
        raise MalformedReply(f"{name}: {len(data)} bytes are no array of {dtype}") from None


def _read(name: str, body: bytes) -> Any:
    try:
        return wire.read(name, body)
    except ValueError as error:
        raise MalformedReply(f"the reply is {error}") from None
