"""mtrl's losses by Twinkle's names, and what undoes its averaging.

====================  =============  ========================================================
``train.loss``        Twinkle        parameters
====================  =============  ========================================================
importance_sampling   GRPOLoss       bounds beyond any ratio, so that nothing is clipped
ppo                   GRPOLoss       ``epsilon`` = 1 - low, ``epsilon_high`` = high - 1
gspo                  GSPOLoss       the same; the ratio is the sequence's (arXiv:2507.18071)
sapo                  SAPOLoss       ``tau_pos``, ``tau_neg``
cispo                 CISPOLoss      ``epsilon`` = high - 1; there is no lower bound
====================  =============  ========================================================

mtrl's advantages carry their weights, and the loss of a call is the *sum* over its tokens.
Twinkle's losses are means: GRPOLoss and what derives from it over the tokens of a sequence and
then over the B sequences, CISPOLoss over all N tokens of the call. Each is linear in the
advantages (for GRPO's minimum and SAPO's gate: for a positive factor), so advantages that are
multiplied by B · n_i, or by N, give the sum. What that needs is one `forward_backward` call per
optimizer step, since Twinkle divides the gradients by the number of calls, and shards of equal
numbers of sequences where the model is data-parallel.

The names and formulas are those of twinkle-kit 0.5.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mtrl_cli.errors import UsageError
from mtrl_cli.servers.interface import LossSpec

Backend = Literal["transformers", "megatron"]

_UNBOUNDED = 1e9
"""Twinkle bounds a log-ratio by 20, so that no ratio is above 5e8."""

_LOW, _HIGH = "clip_low_threshold", "clip_high_threshold"
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "importance_sampling": {},
    "ppo": {_LOW: 0.8, _HIGH: 1.2},
    "gspo": {_LOW: 0.8, _HIGH: 1.2},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.0},
    "cispo": {_HIGH: 1.2},
}
LOSSES = frozenset(_DEFAULTS)


@dataclass(frozen=True, slots=True)
class TwinkleLoss:
    """A loss as ``set_loss`` takes it."""

    name: str
    parameters: Mapping[str, float]


def twinkle_loss(loss: LossSpec) -> TwinkleLoss:
    """Twinkle's loss for mtrl's.

    Raises:
        UsageError: Twinkle has no such loss, or no such parameter of it.
    """
    known = _DEFAULTS.get(loss.name)
    if known is None:
        raise UsageError(
            f"train.loss: Twinkle does not compute {loss.name!r}; write one of "
            f"{', '.join(sorted(LOSSES))}"
        )
    for name in loss.config:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise UsageError(
                f"train.loss_config.{name}: Twinkle's {loss.name} has no such parameter; "
                f"allowed: {allowed}"
            )
    values = {**known, **{name: float(value) for name, value in loss.config.items()}}
    return _NAMED[loss.name](values)


def _clipped(name: str, values: Mapping[str, float]) -> TwinkleLoss:
    low, high = values[_LOW], values[_HIGH]
    if not 0 <= low <= 1 <= high:
        raise UsageError(
            f"train.loss_config: {_LOW} is {low:g} and {_HIGH} is {high:g}; "
            "Twinkle needs low ≤ 1 ≤ high, neither below 0"
        )
    return TwinkleLoss(name, {"epsilon": _round(1 - low), "epsilon_high": _round(high - 1)})


def _cispo(values: Mapping[str, float]) -> TwinkleLoss:
    high = values[_HIGH]
    if high < 1:
        raise UsageError(f"train.loss_config.{_HIGH}: it is {high:g}; write at least 1")
    return TwinkleLoss("CISPOLoss", {"epsilon": _round(high - 1)})


def _round(value: float) -> float:
    """0.2 instead of 0.19999999999999996."""
    return round(value, 12)


_NAMED: Mapping[str, Callable[[Mapping[str, float]], TwinkleLoss]] = {
    "importance_sampling": lambda values: TwinkleLoss(
        "GRPOLoss", {"epsilon": _UNBOUNDED, "epsilon_high": _UNBOUNDED}
    ),
    "ppo": lambda values: _clipped("GRPOLoss", values),
    "gspo": lambda values: _clipped("GSPOLoss", values),
    "sapo": lambda values: TwinkleLoss("SAPOLoss", dict(values)),
    "cispo": _cispo,
}


def scales(loss: str, trained: Sequence[int], backend: Backend) -> list[float]:
    """The factor of each sequence's advantages that turns Twinkle's mean into a sum.

    Args:
        loss: mtrl's name.
        trained: the number of trained tokens of each sequence.
        backend: Megatron is sent one sequence per micro-batch, and averages over those.
    """
    if loss == "cispo" and backend == "transformers":
        return [float(sum(trained))] * len(trained)
    return [float(len(trained) * count) for count in trained]
