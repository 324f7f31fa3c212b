"""Protobuf bodies to calls, results to protobuf bodies: the sibling of `codec`.

Of the requests only a pass over training data may come so, of the answers only those with arrays
may go so; all else is JSON. The rules are those of the JSON side, and so are the words of a
refusal. Arrays are read from and written to bytes whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.local import calls, validate
from mtrl_cli.local.validate import INT32_MAX, refuse
from mtrl_cli.wire import tinker_messages as wire

CONTENT_TYPE = wire.CONTENT_TYPE


# --- bodies in


def train(raw: bytes) -> calls.TrainCall:
    try:
        body = wire.read("ForwardBackwardRequest", raw)
    except ValueError as error:
        refuse("body", str(error))
    backward = not body.forward_only
    loss = validate.check_loss(body.loss_fn, "loss_fn")
    config: dict[str, Any] = dict(body.loss_fn_config)
    for name, value in body.loss_fn_config_v2.items():
        if not value.HasField("number"):
            refuse(f"loss_fn_config_v2.{name}", "expected a number")
        config[name] = value.number
    if not body.data:
        refuse("data", "empty; at least one datum is needed")
    if not body.model_id:
        refuse("model_id", "missing")
    if body.HasField("seq_id") and body.seq_id < 1:
        refuse("seq_id", f"{body.seq_id} is below 1")
    allowed = validate.LOSS_INPUTS[loss] if backward else validate.KNOWN_INPUTS
    return calls.TrainCall(
        model_id=body.model_id,
        seq_id=body.seq_id if body.HasField("seq_id") else None,
        data=[_datum(datum, f"data[{i}]", allowed) for i, datum in enumerate(body.data)],
        loss=loss,
        config=validate.check_loss_config(config, loss, "loss_fn_config"),
        backward=backward,
        packed=True,
    )


def _datum(datum: Any, where: str, allowed: Sequence[str]) -> calls.DatumCall:
    inputs = datum.loss_fn_inputs
    validate.only_keys(inputs, allowed, f"{where}.loss_fn_inputs")
    return calls.DatumCall(
        tokens=_tokens(datum.model_input, f"{where}.model_input"),
        inputs={
            name: _tensor(inputs[name], name, f"{where}.loss_fn_inputs.{name}") for name in inputs
        },
    )


def _tokens(chunks: Any, where: str) -> NDArray[np.int32]:
    for index, chunk in enumerate(chunks):
        if not chunk.HasField("encoded_text"):
            kind = "image" if chunk.HasField("image") else "dmel"
            refuse(
                f"{where}[{index}]",
                f"{kind!r} chunk: text only is served; send encoded_text chunks",
            )
    data = b"".join(chunk.encoded_text.tokens for chunk in chunks)
    return _array(data, "<i4", where).astype(np.int32, copy=False)


def _tensor(tensor: Any, name: str, where: str) -> NDArray[Any]:
    wanted, dtype = ("int64", wire.INT64) if name == "target_tokens" else ("float32", wire.FLOAT32)
    if tensor.HasField("sparse_csr"):
        refuse(where, "a sparse tensor is not served; send it dense")
    if tensor.dtype != dtype:
        refuse(f"{where}.dtype", f"{tensor.dtype} is not served here; allowed: {dtype} ({wanted})")
    values = _array(tensor.dense, wire.DTYPES[dtype], where)
    if tensor.shape and list(tensor.shape) != [len(values)]:
        refuse(f"{where}.shape", f"must be [{len(values)}], one value for each token")
    if wanted == "float32":
        return values
    if values.size and (values.min() < -INT32_MAX or values.max() > INT32_MAX):
        refuse(where, f"a token id is beyond {INT32_MAX}")
    return values.astype(np.int32)


def _array(data: bytes, dtype: str, where: str) -> NDArray[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        refuse(where, f"{len(data)} bytes are not a whole number of values")
    return np.frombuffer(data, dtype=dtype)


# --- results out


def encode(result: calls.SampleResult | calls.TrainResult) -> bytes:
    """The body of a finished promise."""
    message = _sample(result) if isinstance(result, calls.SampleResult) else _outputs(result)
    body: bytes = message.SerializeToString()
    return body


def _sample(result: calls.SampleResult) -> Any:
    response = wire.new("SampleResponse")
    for sequence in result.sequences:
        sent = response.sequences.add()
        sent.stop_reason = wire.STOP if sequence.stop_reason == "stop" else wire.LENGTH
        sent.tokens = np.array(sequence.tokens, dtype="<i4").tobytes()
        sent.logprobs = np.array(sequence.logprobs, dtype="<f4").tobytes()
    if result.prompt_logprobs is not None:
        values = [np.nan if value is None else value for value in result.prompt_logprobs]
        response.prompt_logprobs = np.array(values, dtype="<f4").tobytes()
    response.weights = result.weights
    return response


def _outputs(result: calls.TrainResult) -> Any:
    output = wire.new("ForwardBackwardOutput")
    output.loss_fn_output_type = "ArrayRecord"
    record = output.loss_fn_outputs.add()
    record.num_datums = len(result.logprobs)
    lengths = [4 * len(row) for row in result.logprobs]
    batched = record.fields["logprobs"]
    batched.data = np.concatenate(result.logprobs).astype("<f4", copy=False).tobytes()
    batched.offsets = np.cumsum([0, *lengths], dtype="<i8").tobytes()
    batched.dtype = wire.FLOAT32
    for name, value in result.metrics.items():
        output.metrics[name] = float(value)
    return output
