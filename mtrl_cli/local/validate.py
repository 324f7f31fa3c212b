"""Hand-written checks of what a request says, each with the field's name in its message.

A message reads `field: what was wrong; what is allowed`. Nothing is coerced: a float is not an
integer, a boolean is not a number, a missing array is not zeros. The functions here know nothing
of HTTP bodies beyond plain Python values, so that another codec can use the second half.
"""

from __future__ import annotations

import array
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.local.errors import RefusedError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
SEED_MAX = 2**64 - 1

LOSS_INPUTS: Mapping[str, tuple[str, ...]] = {
    "cross_entropy": ("target_tokens", "weights"),
    "importance_sampling": ("target_tokens", "logprobs", "advantages"),
    "ppo": ("target_tokens", "logprobs", "advantages"),
    "cispo": ("target_tokens", "logprobs", "advantages"),
}
KNOWN_INPUTS = ("target_tokens", "weights", "logprobs", "advantages")
CLIPPED_LOSSES = ("ppo", "cispo")
CLIP_KEYS = ("clip_low_threshold", "clip_high_threshold")


def refuse(field: str, problem: str, status: int = 400) -> NoReturn:
    raise RefusedError(status, f"{field}: {problem}")


def _say(value: object) -> str:
    """A short, safe picture of a value for an error message."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else type(value).__name__


# --- members of a JSON object


def text(body: Mapping[str, Any], key: str, where: str = "") -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        refuse(where + key, f"expected a text, got {_say(value)}")
    return value


def optional_text(body: Mapping[str, Any], key: str, where: str = "") -> str | None:
    return None if body.get(key) is None else text(body, key, where)


def integer(
    body: Mapping[str, Any],
    key: str,
    low: int,
    high: int,
    default: int | None = None,
    where: str = "",
) -> int:
    value = body.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int:
        refuse(where + key, f"expected an integer, got {_say(value)}")
    if not low <= value <= high:
        refuse(where + key, f"{value} is outside {low}..{high}")
    return value


def optional_integer(
    body: Mapping[str, Any], key: str, low: int, high: int, where: str = ""
) -> int | None:
    return None if body.get(key) is None else integer(body, key, low, high, where=where)


def number(
    body: Mapping[str, Any], key: str, low: float, high: float, default: float, where: str = ""
) -> float:
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not float and type(value) is not int:
        refuse(where + key, f"expected a number, got {_say(value)}")
    result = float(value) if abs(value) < 1e300 else math.inf
    if not math.isfinite(result):
        refuse(where + key, f"{_say(value)} is not a finite number")
    if not low <= result <= high:
        refuse(where + key, f"{_say(value)} is outside {low:g}..{high:g}")
    return result


def flag(body: Mapping[str, Any], key: str, default: bool, where: str = "") -> bool:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse(where + key, f"expected true or false, got {_say(value)}")
    return value


def mapping(body: Mapping[str, Any], key: str, where: str = "") -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict):
        refuse(where + key, f"expected an object, got {_say(value)}")
    return value


def sequence(body: Mapping[str, Any], key: str, where: str = "") -> list[Any]:
    value = body.get(key)
    if not isinstance(value, list):
        refuse(where + key, f"expected a list, got {_say(value)}")
    return value


def only_keys(body: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    """Refuse members that would be ignored where ignoring one changes the meaning."""
    names = tuple(allowed)
    for key in body:
        if key not in names:
            refuse(f"{where}.{key}", f"not known here; allowed: {', '.join(names)}")


# --- arrays


def token_array(values: Sequence[Any], field: str) -> NDArray[np.int32]:
    if set(map(type, values)) - {int}:
        refuse(field, "token ids are integers, and something else is among them")
    try:  # several times faster than np.array on a list
        return np.frombuffer(array.array("i", values), dtype=np.int32)
    except OverflowError:
        refuse(field, f"a token id is beyond {INT32_MAX}")


def float_array(values: Sequence[Any], field: str) -> NDArray[np.float32]:
    if set(map(type, values)) - {int, float}:
        refuse(field, "expected numbers, and something else is among them")
    try:
        with np.errstate(over="ignore"):
            return np.array(values, dtype=np.float64).astype(np.float32)
    except OverflowError:
        refuse(field, "a value is too large for float32")


def check_finite(values: NDArray[np.float32], field: str) -> None:
    if not np.isfinite(values).all():
        index = int(np.flatnonzero(~np.isfinite(values))[0])
        refuse(field, f"value {index} is not a finite float32")


def check_tokens(tokens: NDArray[np.int32], vocab: int, field: str) -> None:
    if tokens.size and int(tokens.view(np.uint32).max()) >= vocab:  # a negative id is huge there
        index = int(np.flatnonzero((tokens < 0) | (tokens >= vocab))[0])
        refuse(field, f"token {int(tokens[index])} at position {index} is outside 0..{vocab - 1}")


# --- training data


def check_loss(loss: object, field: str) -> str:
    if not isinstance(loss, str) or loss not in LOSS_INPUTS:
        refuse(field, f"{_say(loss)} is not served; allowed: {', '.join(LOSS_INPUTS)}", 422)
    return loss


def check_loss_config(config: Mapping[str, Any], loss: str, field: str) -> dict[str, float]:
    allowed = CLIP_KEYS if loss in CLIPPED_LOSSES else ()
    for key in config:
        if key not in allowed:
            names = ", ".join(allowed) or "none"
            refuse(f"{field}.{key}", f"not a setting of {loss}; allowed: {names}", 422)
    values = {key: number(config, key, 0.0, 1e6, 0.0, f"{field}.") for key in config}
    low, high = values.get(CLIP_KEYS[0], 0.0), values.get(CLIP_KEYS[1], math.inf)
    if low > high:
        refuse(f"{field}.{CLIP_KEYS[0]}", f"{low:g} is above {CLIP_KEYS[1]} {high:g}", 422)
    return values


def check_datum(
    tokens: NDArray[np.int32],
    inputs: Mapping[str, NDArray[Any]],
    needed: Sequence[str],
    vocab: int,
    context: int,
    field: str,
) -> None:
    """One datum whose arrays are already typed: lengths, ranges, finiteness, nothing missing."""
    length = len(tokens)
    if length == 0:
        refuse(f"{field}.model_input", "no tokens")
    if length > context:
        refuse(f"{field}.model_input", f"{length} tokens exceed the context of {context}")
    check_tokens(tokens, vocab, f"{field}.model_input")
    for name in needed:
        if name not in inputs:
            refuse(f"{field}.loss_fn_inputs.{name}", f"missing; needed: {', '.join(needed)}")
    for name, values in inputs.items():
        where = f"{field}.loss_fn_inputs.{name}"
        if values.shape != (length,):
            refuse(where, f"{values.size} values for {length} input tokens; lengths must be equal")
        if name == "target_tokens":
            check_tokens(values, vocab, where)
        else:
            check_finite(values, where)
