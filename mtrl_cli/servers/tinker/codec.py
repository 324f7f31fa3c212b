"""JSON bodies of the Tinker API: requests out, results in. `protobuf` is its sibling, and
`formats` chooses between them.

The bodies are those of the JSON generation of the API (no ``type`` beside the fields, tensors as
``{"data", "dtype", "shape"}``). Decoding checks form only: a token id is an integer, a logprob
is a number. Whether the values may be trained on is the trajectory's question, so nothing is
padded, cut or repaired here; a logprob that is missing stays missing.
"""

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import Sample, SampleRequest
from mtrl_cli.servers.interface import AdamSpec, Datum, ForwardBackwardResult, LossSpec, ModelSpec
from mtrl_cli.servers.wording import one_line, picture

TX_LORA_ALPHA = 32.0
"""What servers without an ``alpha`` field use."""

_LARGE = 2**18

_compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class MalformedReply(ValueError):  # noqa: N818
    """A reply that does not have the API's form. Its text is one line."""


# --- requests -------------------------------------------------------------------------------


def body_of(fields: Mapping[str, Any]) -> bytes:
    return _compact(fields).encode()


def sample_body(
    request: SampleRequest,
    sampling_session: str,
    seq: int,
    *,
    seed: int,
    prompt_logprobs: bool = False,
) -> bytes:
    """An ``asample`` body. Built by hand: it is the one body that is made every turn."""
    sampling = request.sampling
    return (
        b'{"num_samples":1,"prompt":{"chunks":[{"type":"encoded_text","tokens":[%b]}]},'
        b'"sampling_params":{"max_tokens":%d,"seed":%d,"stop":[%b],'
        b'"temperature":%b,"top_k":%d,"top_p":%b},'
        b'"sampling_session_id":%b,"seq_id":%d,"prompt_logprobs":%b}'
    ) % (
        token_text(request.tokens),
        request.max_tokens,
        seed,
        ",".join(map(str, request.stop_ids)).encode(),
        _number(sampling.temperature),
        sampling.top_k,
        _number(sampling.top_p),
        json.dumps(sampling_session).encode(),
        seq,
        b"true" if prompt_logprobs else b"false",
    )


def model_fields(spec: ModelSpec, session: str, seq: int) -> dict[str, Any]:
    """The ``create_model`` body; ``lora_config`` is left out to train all weights."""
    fields: dict[str, Any] = {
        "session_id": session,
        "model_seq_id": seq,
        "base_model": spec.base_model,
        "user_metadata": None,
    }
    if spec.lora_rank is not None:
        lora: dict[str, Any] = {
            "rank": spec.lora_rank,
            "seed": spec.seed,
            "train_unembed": True,
            "train_mlp": True,
            "train_attn": True,
        }
        if spec.lora_alpha != TX_LORA_ALPHA:  # not a field of every server's schema
            lora["alpha"] = spec.lora_alpha
        fields["lora_config"] = lora
    return fields


def forward_backward_body(model: str, seq: int, data: Sequence[Datum], loss: LossSpec) -> bytes:
    config = {name: float(value) for name, value in loss.config.items()} or None
    return b'{"forward_backward_input":{"data":[%b],"loss_fn":%b,"loss_fn_config":%b},%b' % (
        b",".join(map(datum_json, data)),
        _compact(loss.name).encode(),
        _compact(config).encode(),
        body_of({"model_id": model, "seq_id": seq})[1:],
    )


def datum_json(datum: Datum) -> bytes:
    """One Datum, as a training call's JSON body has it."""
    return (
        b'{"model_input":{"chunks":[{"type":"encoded_text","tokens":[%b]}]},'
        b'"loss_fn_inputs":{"target_tokens":%b,"logprobs":%b,"advantages":%b}}'
    ) % (
        token_text(datum.tokens),
        _tensor(token_text(datum.targets), "int64", len(datum.targets)),
        _tensor(_float_text(datum.logprobs), "float32", len(datum.logprobs)),
        _tensor(_float_text(datum.advantages), "float32", len(datum.advantages)),
    )


def _tensor(data: bytes, dtype: str, length: int) -> bytes:
    return b'{"data":[%b],"dtype":"%b","shape":[%d]}' % (data, dtype.encode(), length)


def adam_fields(adam: AdamSpec) -> dict[str, float]:
    return {
        "learning_rate": adam.learning_rate,
        "beta1": adam.beta1,
        "beta2": adam.beta2,
        "eps": adam.eps,
        "weight_decay": adam.weight_decay,
        "grad_clip_norm": adam.grad_clip_norm,
    }


# --- numbers as text ------------------------------------------------------------------------

# JSON allows spaces before a number. So an id and its comma fit a cell of fixed width, and a
# context becomes text by one table look-up: 20 µs for 4,096 ids, where `json.dumps` takes 500.
_NARROW = np.frombuffer(b"".join(b"%3d," % i for i in range(1000)), dtype=np.uint32)
_WIDE_END = 2**20
_wide = np.empty(0, dtype=np.uint64)


def token_text(tokens: Sequence[int] | NDArray[np.int32]) -> bytes:
    """Token ids as the inside of a JSON list.

    Raises:
        ValueError: an id is negative.
    """
    ids = np.asarray(tokens, dtype=np.int64 if isinstance(tokens, list | tuple) else None)
    if not len(ids):
        return b""
    if ids.min() < 0:
        raise ValueError(f"token id {ids.min()} is negative")
    top = int(ids.max())
    if top < len(_NARROW):
        cells: NDArray[Any] = _NARROW
    elif top < _WIDE_END:
        cells = _wide_cells(top)
    else:
        return ",".join(map(str, ids.tolist())).encode()
    return cells.take(ids).tobytes()[:-1]


def _wide_cells(top: int) -> NDArray[np.uint64]:
    """The table of eight-byte cells, grown to hold ``top``."""
    global _wide
    if top >= len(_wide):
        left = np.arange(1 << top.bit_length())
        cells = np.full((len(left), 8), ord(" "), dtype=np.uint8)
        cells[:, 7] = ord(",")
        for column in range(6, -1, -1):
            shown = (left > 0) | (column == 6)
            cells[shown, column] = ord("0") + left[shown] % 10
            left //= 10
        _wide = cells.view(np.uint64).ravel()
    return _wide


def _float_text(values: NDArray[np.float32]) -> bytes:
    """Floats with nine digits, which is what float32 needs to survive; most of them are 0."""
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    texts = ["0"] * len(values)
    where = np.flatnonzero(values)
    for index, value in zip(where.tolist(), values[where].tolist(), strict=True):
        texts[index] = f"{value:.9g}"
    return ",".join(texts).encode()


def _number(value: float) -> bytes:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return repr(float(value)).encode()


# --- results --------------------------------------------------------------------------------


def parse(body: bytes, hook: Callable[[dict[str, Any]], Any] | None = None) -> Mapping[str, Any]:
    """A reply's JSON object. ``hook`` is called with every object inside it.

    Raises:
        MalformedReply: it is not one.
    """
    try:
        value = json.loads(body, object_hook=hook)
    except (ValueError, RecursionError):
        raise MalformedReply(f"the reply is not JSON: {_say(body)}") from None
    if not isinstance(value, dict):
        raise MalformedReply(f"the reply is not a JSON object: {_say(body)}")
    return value


async def parse_aside(body: bytes) -> Mapping[str, Any]:
    """`parse`, on a thread where the body is large.

    One call of the JSON parser holds the interpreter to its end. The hook, which does nothing,
    is what lets the event loop run in between: after every object, a datum's array for example.
    """
    if len(body) < _LARGE:
        return parse(body)
    return await asyncio.to_thread(parse, body, lambda value: value)


def name_in(reply: Mapping[str, Any], key: str) -> str:
    """An id or URI that the server made, fit to be echoed and written down."""
    value = reply.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 2000 or not value.isprintable():
        raise MalformedReply(f"the reply has no usable {key!r}: {_say(reply)}")
    return value


def sample_of(reply: Mapping[str, Any]) -> Sample:
    """The one sequence of a finished ``asample``."""
    sequences = reply.get("sequences")
    if not isinstance(sequences, list) or len(sequences) != 1:
        raise MalformedReply(f"expected one sequence in the sample: {_say(reply)}")
    sequence = sequences[0]
    if not isinstance(sequence, dict):
        raise MalformedReply(f"the sampled sequence is not an object: {_say(reply)}")
    weights = reply.get("weights")
    if weights is not None and not isinstance(weights, str):
        raise MalformedReply(f"'weights' is not the name of a policy: {_say(reply)}")
    return Sample(
        tokens=_tokens(sequence.get("tokens")),
        logprobs=_numbers(sequence.get("logprobs") or [], "logprobs"),
        stop_reason=_stop_reason(sequence.get("stop_reason")),
        policy=weights,
    )


def _tokens(value: Any) -> list[int]:
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        raise MalformedReply(f"the sampled tokens are not a list of integers: {_say(value)}")
    if value and not (min(value) >= 0 and max(value) < 2**31):
        raise MalformedReply(f"a sampled token id is out of range: {_say(value)}")
    return value


def _numbers(value: Any, name: str) -> list[float]:
    if not isinstance(value, list):
        raise MalformedReply(f"{name} is not a list: {_say(value)}")
    kinds = set(map(type, value))
    if kinds <= {float}:
        return value
    if kinds - {float, int, type(None)}:
        raise MalformedReply(f"{name} holds something other than numbers: {_say(value)}")
    try:
        return [math.nan if number is None else float(number) for number in value]
    except OverflowError:
        raise MalformedReply(f"{name} holds a number beyond any float") from None


def _stop_reason(value: Any) -> Literal["stop", "length"]:
    if value == "stop":
        return "stop"
    if value == "length":
        return "length"
    raise MalformedReply(f"the stop reason is {_say(value)}; known are 'stop' and 'length'")


def prompt_logprobs_of(reply: Mapping[str, Any], length: int) -> NDArray[np.float32]:
    """Logprobs of a prompt of ``length`` tokens; the first is NaN.

    Servers return ``length`` entries, the first of them null, or ``length - 1`` without it.
    """
    return checked_prompt_logprobs(
        _numbers(reply.get("prompt_logprobs"), "prompt_logprobs"), length
    )


def checked_prompt_logprobs(
    values: Sequence[float] | NDArray[np.float32], length: int
) -> NDArray[np.float32]:
    if len(values) == length:
        values = values[1:]
    elif len(values) != length - 1:
        raise MalformedReply(f"{len(values)} prompt logprobs came back for {length} tokens")
    with np.errstate(over="ignore"):
        logprobs = np.array([math.nan, *values], dtype=np.float32)
    if not np.isfinite(logprobs[1:]).all():
        raise MalformedReply("a prompt logprob is not finite")
    return logprobs


def forward_backward_of(reply: Mapping[str, Any]) -> ForwardBackwardResult:
    outputs = reply.get("loss_fn_outputs")
    if not isinstance(outputs, list) or not all(isinstance(item, dict) for item in outputs):
        raise MalformedReply(f"loss_fn_outputs is not a list of objects: {_say(outputs)}")
    metrics = metrics_of(reply)
    loss = metrics.get("loss:sum")
    if loss is None:
        key = next((key for key in ("elementwise_loss", "loss") if _all_have(outputs, key)), None)
        if key is None:
            raise MalformedReply(f"the reply holds no loss; its metrics are {sorted(metrics)}")
        with np.errstate(invalid="ignore"):  # whether it is finite is asked by the caller
            loss = float(sum(_array(item, key).sum(dtype=np.float64) for item in outputs))
    logprobs = [_array(item, "logprobs") for item in outputs]
    return ForwardBackwardResult(loss=loss, logprobs=logprobs, metrics=metrics)


def _all_have(outputs: Sequence[Mapping[str, Any]], key: str) -> bool:
    return bool(outputs) and all(key in item for item in outputs)


def _array(output: Mapping[str, Any], key: str) -> NDArray[np.float32]:
    value = output.get(key)
    data = value.get("data") if isinstance(value, dict) else value
    with np.errstate(over="ignore"):
        return np.array(_numbers(data, key), dtype=np.float32)


def metrics_of(reply: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a result's metrics."""
    metrics = reply.get("metrics")
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise MalformedReply(f"metrics is not an object: {_say(metrics)}")
    numbers = {}
    for name, value in metrics.items():
        if type(value) is float or (type(value) is int and abs(value) < 2**53):
            numbers[one_line(name, 100)] = float(value)
    return numbers


def _say(value: Any) -> str:
    """A short picture of what came instead."""
    return picture(value) or "nothing"
