"""JSON bodies to calls, results to JSON bodies; `packed` is its protobuf sibling.

Decoding refuses what it does not understand and NaN or Infinity anywhere. Encoding writes floats
of arrays with nine significant digits, which is exactly what float32 needs to survive the trip; a
whole number may therefore be written without a fraction (`0`, `-3`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.local import calls, validate
from mtrl_cli.local.errors import Failure, RefusedError
from mtrl_cli.local.validate import INT32_MAX, INT64_MAX, SEED_MAX, refuse

CONTENT_TYPE = "application/json"
MAX_SAMPLES = 1024


def _constant(name: str) -> NoReturn:
    raise RefusedError(400, f"body: {name} is not JSON; every number must be finite")


_decode = json.JSONDecoder(parse_constant=_constant).decode
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode


# --- bodies in


def parse(raw: bytes) -> dict[str, Any]:
    try:
        body = _decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"body: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "body: expected a JSON object")
    return body


def create_model(body: Mapping[str, Any]) -> calls.CreateModelCall:
    metadata = body.get("user_metadata")
    return calls.CreateModelCall(
        session_id=validate.text(body, "session_id"),
        model_seq_id=validate.optional_integer(body, "model_seq_id", 0, INT64_MAX),
        base_model=validate.text(body, "base_model"),
        lora=None if body.get("lora_config") is None else _lora(body),
        user_metadata=None if metadata is None else validate.mapping(body, "user_metadata"),
    )


def _lora(body: Mapping[str, Any]) -> calls.LoraCall | None:
    where = "lora_config."
    lora = validate.mapping(body, "lora_config")
    rank = validate.integer(lora, "rank", 0, 4096, where=where)
    call = calls.LoraCall(
        rank=rank,
        seed=validate.optional_integer(lora, "seed", 0, INT64_MAX, where),
        alpha=validate.number(lora, "alpha", 1e-6, 1e6, 32.0, where),
        train_attn=validate.flag(lora, "train_attn", True, where),
        train_mlp=validate.flag(lora, "train_mlp", True, where),
        train_unembed=validate.flag(lora, "train_unembed", True, where),
    )
    if rank and not (call.train_attn or call.train_mlp or call.train_unembed):
        refuse("lora_config", "nothing to train: train_attn, train_mlp and train_unembed are false")
    return call if rank else None


def _seq(body: Mapping[str, Any]) -> int | None:
    return validate.optional_integer(body, "seq_id", 1, INT64_MAX)


def train(body: Mapping[str, Any], backward: bool) -> calls.TrainCall:
    name = "forward_backward_input" if backward else "forward_input"
    given = validate.mapping(body, name)
    loss = validate.check_loss(given.get("loss_fn"), f"{name}.loss_fn")
    config = (
        {}
        if given.get("loss_fn_config") is None
        else validate.mapping(given, "loss_fn_config", f"{name}.")
    )
    data = validate.sequence(given, "data", f"{name}.")
    if not data:
        refuse(f"{name}.data", "empty; at least one datum is needed")
    allowed = validate.LOSS_INPUTS[loss] if backward else validate.KNOWN_INPUTS
    return calls.TrainCall(
        model_id=validate.text(body, "model_id"),
        seq_id=_seq(body),
        data=[_datum(d, f"{name}.data[{i}]", allowed) for i, d in enumerate(data)],
        loss=loss,
        config=validate.check_loss_config(config, loss, f"{name}.loss_fn_config"),
        backward=backward,
    )


def _datum(datum: object, where: str, allowed: Sequence[str]) -> calls.DatumCall:
    if not isinstance(datum, dict):
        refuse(where, "expected an object with model_input and loss_fn_inputs")
    tokens = _tokens(validate.mapping(datum, "model_input", f"{where}."), f"{where}.model_input")
    inputs = validate.mapping(datum, "loss_fn_inputs", f"{where}.")
    validate.only_keys(inputs, allowed, f"{where}.loss_fn_inputs")
    return calls.DatumCall(
        tokens=tokens,
        inputs={
            name: _tensor(tensor, name, f"{where}.loss_fn_inputs.{name}")
            for name, tensor in inputs.items()
        },
    )


def _tokens(model_input: Mapping[str, Any], where: str) -> NDArray[np.int32]:
    """The ids of all chunks. Text only: a chunk of any other type is refused by its name."""
    chunks = model_input.get("chunks")
    if not isinstance(chunks, list):
        refuse(f"{where}.chunks", "expected a list of encoded_text chunks")
    ids: list[Any] = []
    for index, chunk in enumerate(chunks):
        if not isinstance(chunk, dict):
            refuse(f"{where}.chunks[{index}]", "expected an object")
        kind = chunk.get("type", "encoded_text")
        tokens = chunk.get("tokens")
        if kind != "encoded_text" or (tokens is None and len(chunk) > 1):
            refuse(
                f"{where}.chunks[{index}]",
                f"{kind!r:.40} chunk: text only is served; send encoded_text chunks",
            )
        if not isinstance(tokens, list):
            refuse(f"{where}.chunks[{index}].tokens", "expected a list of token ids")
        ids = tokens if len(chunks) == 1 else ids + tokens
    return validate.token_array(ids, where)


def _tensor(tensor: object, name: str, where: str) -> NDArray[Any]:
    if not isinstance(tensor, dict):
        refuse(where, "expected an object with data, dtype and shape")
    wanted = "int64" if name == "target_tokens" else "float32"
    dtype = tensor.get("dtype", wanted)
    if dtype != wanted:
        refuse(f"{where}.dtype", f"{dtype!r:.40} is not served here; allowed: {wanted}")
    data = validate.sequence(tensor, "data", f"{where}.")
    shape = tensor.get("shape")
    if shape is not None and shape != [len(data)]:
        refuse(f"{where}.shape", f"must be [{len(data)}], one value for each token")
    if wanted == "int64":
        return validate.token_array(data, where)
    return validate.float_array(data, where)


def optim_step(body: Mapping[str, Any]) -> calls.OptimCall:
    given = validate.mapping(body, "adam_params")
    where = "adam_params."
    adam = {
        "learning_rate": validate.number(given, "learning_rate", 0.0, 1e6, 1e-4, where),
        "beta1": validate.number(given, "beta1", 0.0, 0.999999999, 0.9, where),
        "beta2": validate.number(given, "beta2", 0.0, 0.999999999, 0.95, where),
        "eps": validate.number(given, "eps", 0.0, 1e6, 1e-12, where),
        "weight_decay": validate.number(given, "weight_decay", 0.0, 1e6, 0.0, where),
        "grad_clip_norm": validate.number(given, "grad_clip_norm", 0.0, 1e30, 0.0, where),
    }
    validate.only_keys(given, adam, "adam_params")
    return calls.OptimCall(validate.text(body, "model_id"), _seq(body), adam)


def save(body: Mapping[str, Any], sampler: bool) -> calls.SaveCall:
    return calls.SaveCall(
        model_id=validate.text(body, "model_id"),
        seq_id=_seq(body),
        path=validate.optional_text(body, "path"),
        sampler=sampler,
        overwrite=validate.flag(body, "overwrite", False),
        sampling_session_seq_id=validate.optional_integer(
            body, "sampling_session_seq_id", 0, INT64_MAX
        ),
    )


def load_weights(body: Mapping[str, Any]) -> calls.LoadCall | calls.CreateByLoadCall:
    seq_id = _seq(body)
    given = body.get("user_metadata")
    metadata = None if given is None else validate.mapping(body, "user_metadata")
    if body.get("model_id") is None and body.get("session_id") is not None:
        return calls.CreateByLoadCall(
            session_id=validate.text(body, "session_id"),
            model_seq_id=validate.integer(body, "model_seq_id", 0, 10**9),
            path=validate.text(body, "path"),
            optimizer=validate.flag(body, "optimizer", False),
            user_metadata=metadata,
        )
    return calls.LoadCall(
        model_id=validate.text(body, "model_id"),
        seq_id=seq_id,
        path=validate.text(body, "path"),
        optimizer=validate.flag(body, "optimizer", False),
    )


def sampling_session(body: Mapping[str, Any]) -> calls.SamplingSessionCall:
    call = calls.SamplingSessionCall(
        session_id=validate.text(body, "session_id"),
        sampling_session_seq_id=validate.optional_integer(
            body, "sampling_session_seq_id", 0, INT64_MAX
        ),
        model_path=validate.optional_text(body, "model_path"),
        base_model=validate.optional_text(body, "base_model"),
    )
    if call.model_path is None and call.base_model is None:
        refuse("model_path", "missing; give model_path or base_model")
    return call


def sample(body: Mapping[str, Any]) -> calls.SampleCall:
    params = validate.mapping(body, "sampling_params")
    where = "sampling_params."
    names = ("sampling_session_id", "model_path", "base_model")
    if all(body.get(name) is None for name in names):
        refuse("sampling_session_id", f"missing; give one of {', '.join(names)}")
    for unserved in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if body.get(unserved):
            refuse(unserved, "is not served; leave it out or send 0")
    top_k = validate.integer(params, "top_k", -1, INT32_MAX, -1, where)
    return calls.SampleCall(
        sampling_session_id=validate.optional_text(body, names[0]),
        model_path=validate.optional_text(body, names[1]),
        base_model=validate.optional_text(body, names[2]),
        tokens=_tokens(validate.mapping(body, "prompt"), "prompt"),
        num_samples=validate.integer(body, "num_samples", 1, MAX_SAMPLES, 1),
        max_tokens=validate.optional_integer(params, "max_tokens", 1, INT32_MAX, where),
        stop_ids=_stop_ids(params.get("stop")),
        temperature=validate.number(params, "temperature", 0.0, 1e3, 1.0, where),
        seed=validate.optional_integer(params, "seed", 0, SEED_MAX, where),
        top_k=top_k if top_k > 0 else -1,
        top_p=validate.number(params, "top_p", 1e-6, 1.0, 1.0, where),
        prompt_logprobs=validate.flag(body, "prompt_logprobs", False),
    )


def _stop_ids(stop: object) -> frozenset[int]:
    if stop is None:
        return frozenset()
    if not isinstance(stop, list):
        refuse("sampling_params.stop", "expected a list of token ids; stop strings are not served")
    if set(map(type, stop)) - {int}:
        refuse("sampling_params.stop", "stop strings are not served; give token ids")
    return frozenset(stop)


# --- results out


def encode(result: object) -> bytes:
    """The body of a finished promise."""
    if isinstance(result, calls.SampleResult):
        return _sample_body(result).encode()
    if isinstance(result, calls.TrainResult):
        return _train_body(result).encode()
    if isinstance(result, Failure):
        return plain({"error": result.error, "category": result.category})
    assert isinstance(result, dict), type(result)
    return plain(result)


def plain(value: Mapping[str, Any]) -> bytes:
    return _encode(value).encode()


def _floats(values: Sequence[float]) -> str:
    return ("[" + ",".join(["%.9g"] * len(values)) + "]") % tuple(values)


def _sample_body(result: calls.SampleResult) -> str:
    sequences = ",".join(
        f'{{"stop_reason":"{s.stop_reason}","tokens":{s.tokens},"logprobs":{_floats(s.logprobs)}}}'
        for s in result.sequences
    )
    prompt = ""
    if result.prompt_logprobs is not None:
        inner = ",".join(["null" if v is None else f"{v:.9g}" for v in result.prompt_logprobs])
        prompt = f'"prompt_logprobs":[{inner}],'
    weights = _encode(result.weights)
    return f'{{"sequences":[{sequences}],{prompt}"weights":{weights},"type":"sample"}}'


def _train_body(result: calls.TrainResult) -> str:
    outputs = ",".join(
        f'{{"logprobs":{{"data":{_floats(array.tolist())},"dtype":"float32",'
        f'"shape":[{len(array)}]}}}}'
        for array in result.logprobs
    )
    metrics = _encode(dict(result.metrics))
    return (
        f'{{"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":[{outputs}],"metrics":{metrics}}}'
    )
