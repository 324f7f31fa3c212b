"""JSON bodies of Twinkle's own API: requests out, replies in.

**Labels are pre-rolled.** ``labels[i]`` is the id of token i + 1 where that token was sampled,
and -100 elsewhere, the last position included; the server does not shift. ``old_logps`` and
``advantages`` hold one value for each label that is not -100, in order. Exactly that length: one
value alone would be spread over a sequence, and a list as long as the padded batch would be read
by position. The trained positions of a datum are those that have an advantage.

Replies come in two shapes, that of the transformers and Megatron backends and that of the mock
backend. Decoding checks form only; whether values may be trained on is asked elsewhere.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import Sample, SampleRequest
from mtrl_cli.servers.interface import (
    AdamSpec,
    Datum,
    ForwardBackwardResult,
    LossSpec,
    ModelSpec,
)
from mtrl_cli.servers.tinker.codec import MalformedReply, body_of, token_text
from mtrl_cli.servers.twinkle.losses import Backend, scales
from mtrl_cli.servers.wording import one_line, picture

IGNORED = -100
"""The label of a position that is not trained."""

UNCLIPPED = 1e9
"""A gradient norm that clips nothing; 0 would clip everything."""

_MEDIA = (
    "images", "videos", "audios", "pixel_values", "pixel_values_videos", "image_grid_thw",
    "video_grid_thw", "input_features",
)  # fmt: skip


# --- requests -------------------------------------------------------------------------------


def lora_config(spec: ModelSpec) -> str:
    """The ``config`` of ``add_adapter_to_model``: a JSON string, marked with its class."""
    alpha = int(spec.lora_alpha) if spec.lora_alpha == int(spec.lora_alpha) else spec.lora_alpha
    fields = {"r": spec.lora_rank, "target_modules": "all-linear", "lora_alpha": alpha}
    return json.dumps({**fields, "_TWINKLE_TYPE_": "LoraConfig"})


def optimizer_fields(adam: AdamSpec, backend: Backend) -> dict[str, Any]:
    """``set_optimizer``. Weight decay is decoupled: AdamW, which Megatron calls Adam."""
    decays = adam.weight_decay > 0 and backend == "transformers"
    return {"optimizer_cls": "AdamW" if decays else "Adam", **optimizer_parameters(adam)}


def optimizer_parameters(adam: AdamSpec) -> dict[str, Any]:
    """``optim_params`` of ``clip_grad_and_step``: they replace the optimizer's own."""
    return {
        "lr": adam.learning_rate,
        "betas": [adam.beta1, adam.beta2],
        "eps": adam.eps,
        "weight_decay": adam.weight_decay,
    }


def sample_body(requests: Sequence[SampleRequest], adapter_uri: str | None) -> bytes:
    """A ``sample`` body for requests that share their policy and how they are sampled.

    No seed is sent: one would hold for every input of the call, and members of a group, whose
    prompts are equal, would all be given the same completion.
    """
    first = requests[0]
    sampling: dict[str, Any] = {
        "max_tokens": first.max_tokens,
        "temperature": first.sampling.temperature,
        "top_p": first.sampling.top_p,
        "top_k": first.sampling.top_k,
        "stop": list(first.stop_ids),
        "num_samples": 1,
        "logprobs": 1,
    }
    fields = {"sampling_params": sampling, "adapter_name": "", "num_samples": 1}
    if adapter_uri is not None:
        fields["adapter_uri"] = adapter_uri
    return b'{"inputs":[%b],%b' % (
        b",".join(_prompt(request.tokens) for request in requests),
        body_of(fields)[1:],
    )


def _prompt(tokens: Sequence[int]) -> bytes:
    # Without labels the real template answers with labels that mean nothing.
    ignored = b",".join([b"%d" % IGNORED] * len(tokens))
    return b'{"input_ids":[%b],"labels":[%b]}' % (token_text(tokens), ignored)


def forward_backward_body(
    adapter: str, data: Sequence[Datum], loss: LossSpec, backend: Backend
) -> bytes:
    """A ``forward_backward`` body; see the module's docstring.

    Raises:
        ValueError: a datum has nothing to train, or a value is not finite.
    """
    masks = [datum.advantages != 0 for datum in data]
    trained = [int(mask.sum()) for mask in masks]
    if 0 in trained:
        raise ValueError(f"datum {trained.index(0)} has no token with an advantage")
    factors = scales(loss.name, trained, backend)
    advantages = [
        datum.advantages[mask].astype(np.float64) * factor
        for datum, mask, factor in zip(data, masks, factors, strict=True)
    ]
    fields: dict[str, Any] = {
        "adapter_name": adapter,
        "advantages": _advantages(advantages),
        "old_logps": [
            datum.logprobs[mask].tolist() for datum, mask in zip(data, masks, strict=True)
        ],
    }
    if loss.temperature != 1:
        fields["temperature"] = loss.temperature
    if backend == "megatron":
        fields["micro_batch_size"] = 1
    features = (_feature(datum, mask) for datum, mask in zip(data, masks, strict=True))
    return b'{"inputs":[%b],%b' % (b",".join(features), body_of(fields)[1:])


def _advantages(values: Sequence[NDArray[np.float64]]) -> list[Any]:
    """One number a sequence where its tokens agree, which is the API's common form."""
    if all((row == row[0]).all() for row in values):
        return [float(row[0]) for row in values]
    return [row.tolist() for row in values]


def _feature(datum: Datum, mask: NDArray[np.bool_]) -> bytes:
    """The whole sequence with its rolled labels. Positions are Megatron's need."""
    length = len(datum.tokens) + 1
    ids = np.append(datum.tokens, datum.targets[-1])
    labels = np.append(np.where(mask, datum.targets, IGNORED), IGNORED)
    return (
        b'{"input_ids":[%b],"labels":[%b],"attention_mask":[%b],"position_ids":[%b],"length":%d}'
    ) % (
        token_text(ids),
        ",".join(map(str, labels.tolist())).encode(),
        b",".join([b"1"] * length),
        token_text(np.arange(length, dtype=np.int32)),
        length,
    )


# --- replies --------------------------------------------------------------------------------


def samples_of(reply: Mapping[str, Any], count: int) -> list[Sample]:
    """The samples of a call, in the order of its inputs; one sequence each."""
    samples = reply.get("samples")
    if not isinstance(samples, list) or len(samples) != count:
        raise MalformedReply(f"expected {count} samples: {_say(samples)}")
    return [_sample(sample) for sample in samples]


def _sample(sample: Any) -> Sample:
    sequences = sample.get("sequences") if isinstance(sample, dict) else None
    if not isinstance(sequences, list) or len(sequences) != 1:
        raise MalformedReply(f"expected one sequence in a sample: {_say(sample)}")
    sequence = sequences[0]
    if not isinstance(sequence, dict):
        raise MalformedReply(f"the sampled sequence is not an object: {_say(sequence)}")
    tokens = _ids(sequence.get("tokens"), "the sampled tokens")
    reason = sequence.get("stop_reason")
    if reason not in ("stop", "length"):
        raise MalformedReply(f"the stop reason is {_say(reason)}, not 'stop' or 'length'")
    return Sample(
        tokens=tokens,
        logprobs=_sampled_logprobs(sequence.get("logprobs"), tokens),
        stop_reason=reason,
        echo=_echo(sequence.get("new_input_feature")),
    )


def _sampled_logprobs(value: Any, tokens: Sequence[int]) -> list[float]:
    """From ``[[[token, logprob], …], …]`` the sampled token's own; NaN where it is not there."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedReply(f"logprobs is not a list: {_say(value)}")
    found = [_named(entry, token) for entry, token in zip(value, tokens, strict=False)]
    return found + [math.nan] * max(0, len(value) - len(tokens))


def _named(entry: Any, token: int) -> float:
    pairs = entry if isinstance(entry, list) else []
    for pair in pairs:
        if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and pair[0] == token:
            return _number(pair[1], "a logprob")
    return math.nan


def _echo(feature: Any) -> Sequence[int] | None:
    if feature is None:
        return None
    if not isinstance(feature, dict):
        raise MalformedReply(f"new_input_feature is not an object: {_say(feature)}")
    for name in _MEDIA:
        if feature.get(name):
            raise MalformedReply(f"new_input_feature holds {name!r}; mtrl is text only")
    ids = feature.get("input_ids")
    return None if ids is None else _ids(ids, "the echoed input_ids")


def forward_backward_of(reply: Any, data: Sequence[Datum]) -> ForwardBackwardResult:
    """The loss and the trainer's logprobs, which are 0 where nothing is trained.

    A loss of null, which is how NaN comes, is NaN here.
    """
    loss, rows = _loss_and_rows(_result(reply))
    if len(rows) != len(data):
        raise MalformedReply(f"{len(rows)} rows of logprobs came back for {len(data)} sequences")
    logprobs = [_trained(row, datum) for row, datum in zip(rows, data, strict=True)]
    return ForwardBackwardResult(loss=loss, logprobs=logprobs, metrics={})


def _loss_and_rows(result: Any) -> tuple[float, list[Any]]:
    if isinstance(result, list) and len(result) == 2 and isinstance(result[0], list):
        records, loss = result  # the mock backend
        rows: Any = [record.get("logprobs") for record in records if isinstance(record, dict)]
        return _number(loss, "the loss"), rows
    if not isinstance(result, dict) or "loss" not in result:
        raise MalformedReply(f"no loss in the result: {_say(result)}")
    rows = result.get("logps")
    if not isinstance(rows, list):
        raise MalformedReply(f"no logps in the result: {_say(rows)}")
    if rows and all(isinstance(row, list) and row and isinstance(row[0], list) for row in rows):
        rows = [inner for row in rows for inner in row]  # one tensor a micro-batch
    loss = result["loss"]
    loss = loss[0] if isinstance(loss, list) and len(loss) == 1 else loss
    return _number(loss, "the loss"), rows


def _trained(row: Any, datum: Datum) -> NDArray[np.float32]:
    """A padded row, cut to the datum's targets."""
    count = len(datum.targets)
    if not isinstance(row, list) or len(row) < count:
        raise MalformedReply(f"a row of logprobs is shorter than its {count} targets")
    numbers = [_number(value, "a logprob") for value in row[:count]]
    with np.errstate(over="ignore"):
        values = np.array(numbers, dtype=np.float32)
    return np.where(datum.advantages != 0, values, np.float32(0))


def metrics_of(reply: Any) -> dict[str, float]:
    """The numbers of ``calculate_metric``, many of which come as text."""
    result = _result(reply)
    if not isinstance(result, dict):
        raise MalformedReply(f"the metrics are not an object: {_say(result)}")
    numbers = {}
    for name, value in result.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            continue  # "2 seconds", for people
        if not isinstance(value, bool):
            numbers[one_line(str(name), 100)] = number
    return numbers


def _result(reply: Any) -> Any:
    if not isinstance(reply, dict) or "result" not in reply:
        raise MalformedReply(f"the reply has no result: {_say(reply)}")
    return reply["result"]


def _ids(value: Any, what: str) -> list[int]:
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        raise MalformedReply(f"{what} are not a list of integers: {_say(value)}")
    if value and not (min(value) >= 0 and max(value) < 2**31):
        raise MalformedReply(f"{what} hold an id that is out of range: {_say(value)}")
    return value


def _number(value: Any, what: str) -> float:
    """A number; they may come as text, and NaN as null."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MalformedReply(f"{what} is not a number: {_say(value)}")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise MalformedReply(f"{what} is not a number: {_say(value)}") from None


def _say(value: Any) -> str:
    return picture(value)
