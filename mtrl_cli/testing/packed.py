"""Protobuf bodies for the scripted policy server, to and from the shape that its JSON has."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mtrl_cli.wire import tinker_messages as wire

_NAMES = {wire.FLOAT32: "float32", wire.INT64: "int64"}


def request_body(raw: bytes) -> Mapping[str, Any]:
    """A forward/backward request as the JSON body that says the same."""
    message = wire.read("ForwardBackwardRequest", raw)
    given = {
        "data": [_datum(datum) for datum in message.data],
        "loss_fn": message.loss_fn,
        "loss_fn_config": dict(message.loss_fn_config) or None,
    }
    kind = "forward_input" if message.forward_only else "forward_backward_input"
    return {kind: given, "model_id": message.model_id, "seq_id": message.seq_id}


def _datum(datum: Any) -> Mapping[str, Any]:
    chunks = [
        {
            "type": "encoded_text",
            "tokens": np.frombuffer(chunk.encoded_text.tokens, "<i4").tolist(),
        }
        for chunk in datum.model_input
    ]
    inputs = {
        name: {
            "data": np.frombuffer(tensor.dense, wire.DTYPES[tensor.dtype]).tolist(),
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
        }
        for name, tensor in datum.loss_fn_inputs.items()
    }
    return {"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs}


def result_body(result: Mapping[str, Any]) -> bytes | None:
    """A result with arrays as protobuf; None for a result that has none."""
    if "sequences" in result:
        return _sample(result)
    if "loss_fn_outputs" in result:
        return _outputs(result)
    return None


def _sample(result: Mapping[str, Any]) -> bytes:
    message = wire.new("SampleResponse")
    for sequence in result["sequences"]:
        sent = message.sequences.add()
        sent.stop_reason = wire.STOP if sequence["stop_reason"] == "stop" else wire.LENGTH
        sent.tokens = np.array(sequence["tokens"], "<i4").tobytes()
        sent.logprobs = np.array(sequence["logprobs"], "<f4").tobytes()
    if result.get("prompt_logprobs") is not None:
        values = [np.nan if value is None else value for value in result["prompt_logprobs"]]
        message.prompt_logprobs = np.array(values, "<f4").tobytes()
    body: bytes = message.SerializeToString()
    return body


def _outputs(result: Mapping[str, Any]) -> bytes:
    message = wire.new("ForwardBackwardOutput")
    message.loss_fn_output_type = result["loss_fn_output_type"]
    record = message.loss_fn_outputs.add()
    rows = [np.array(item["logprobs"]["data"], "<f4") for item in result["loss_fn_outputs"]]
    batched = record.fields["logprobs"]
    batched.data = b"".join(row.tobytes() for row in rows)
    batched.offsets = np.cumsum([0, *(row.nbytes for row in rows)]).astype("<i8").tobytes()
    batched.dtype = wire.FLOAT32
    record.num_datums = len(rows)
    for name, value in result["metrics"].items():
        message.metrics[name] = value
    body: bytes = message.SerializeToString()
    return body
