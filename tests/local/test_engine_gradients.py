"""Hand-written gradients against float64 central differences, and the batch plan's equality."""

from collections.abc import Callable

import numpy as np
import pytest

from mtrl_cli.local.engine import Datum, Lora, Shape, adapters, gradient, losses
from mtrl_cli.local.engine.types import Array, LossName, Weights
from mtrl_cli.local.engine.weights import initial

SHAPE = Shape(vocab=23, width=16, layers=2, heads=2, context=64)
LOSSES: list[LossName] = ["cross_entropy", "importance_sampling", "ppo", "cispo"]


def base(seed: int = 1) -> dict[str, Array]:
    """Float64 weights with every matrix, the residual outputs too, away from zero."""
    rng = np.random.default_rng(seed)
    return {
        name: value.astype(np.float64) + 0.1 * rng.standard_normal(value.shape)
        for name, value in initial(SHAPE, seed).items()
    }


def batch(seed: int = 2, shared: int = 5) -> list[Datum]:
    """Sequences with a common prefix (trained in part), repeated rows, observations."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, SHAPE.vocab, shared)
    data = []
    for length in (3, 9, 6, 9, 1, 7):
        tokens = np.concatenate([prefix, rng.integers(0, SHAPE.vocab, length)]).astype(np.int32)
        total = len(tokens)
        live = rng.random(total) < 0.7
        data.append(
            Datum(
                tokens,
                {
                    "target_tokens": rng.integers(0, SHAPE.vocab, total),
                    "weights": np.where(live, rng.standard_normal(total), 0),
                    "logprobs": np.where(live, -3 + 0.3 * rng.standard_normal(total), 0),
                    "advantages": np.where(live, rng.standard_normal(total), 0),
                },
            )
        )
    again = data[1]
    twin = {**again.inputs, "advantages": again.inputs["advantages"][::-1].copy()}
    return [*data, Datum(again.tokens, twin)]


def value_of(weights: Weights, data: list[Datum], loss: LossName) -> Callable[[Weights], float]:
    """The function of the weights whose gradient the engine must return.

    That is the loss itself, but for cispo, where the clipped ratio is a constant by definition:
    there it is the logprobs weighted with the slopes at ``weights``.
    """
    if loss != "cispo":
        return lambda moved: gradient.loss_and_gradients(SHAPE, moved, data, loss, {})[0]
    clip = losses.clip_range(loss, {})
    slopes = [
        losses.loss_and_slope(loss, logp, datum.inputs, clip)[1]
        for logp, datum in zip(gradient.logprobs(SHAPE, weights, data), data, strict=True)
    ]

    def surrogate(moved: Weights) -> float:
        found = gradient.logprobs(SHAPE, moved, data)
        return sum(float(s @ logp) for s, logp in zip(slopes, found, strict=True))

    return surrogate


@pytest.mark.parametrize("loss", LOSSES)
def test_every_matrix_gradient_matches_central_differences(loss: LossName) -> None:
    weights, data = base(), batch()
    _value, _logprobs, gradients = gradient.loss_and_gradients(SHAPE, weights, data, loss, {})
    value = value_of(weights, data, loss)
    rng = np.random.default_rng(3)
    for name, matrix in weights.items():
        for _ in range(4):
            at = tuple(rng.integers(0, size) for size in matrix.shape)
            check(matrix, at, gradients[name][at], lambda: value(weights))


@pytest.mark.parametrize("loss", LOSSES)
def test_lora_gradients_match_central_differences(loss: LossName) -> None:
    weights, data = base(), batch()
    lora = Lora(rank=3, alpha=5.0, seed=4, train_unembed=True)
    parameters = adapters.initial(SHAPE, lora, np.dtype(np.float64))
    rng = np.random.default_rng(5)
    for name in parameters:
        parameters[name] += 0.1 * rng.standard_normal(parameters[name].shape)

    merged = adapters.merged(weights, parameters, lora)
    value = value_of(merged, data, loss)
    whole = gradient.loss_and_gradients(SHAPE, merged, data, loss, {})[2]
    gradients = adapters.parameter_gradients(whole, parameters, lora)
    assert set(gradients) == set(parameters)
    for name, matrix in parameters.items():
        for _ in range(3):
            at = tuple(rng.integers(0, size) for size in matrix.shape)
            check(
                matrix, at, gradients[name][at],
                lambda: value(adapters.merged(weights, parameters, lora)),
            )  # fmt: skip


def check(
    matrix: Array, at: tuple[int, ...], found: float, value: Callable[[], float], h: float = 1e-5
) -> None:
    kept = matrix[at]
    matrix[at] = kept + h
    above = value()
    matrix[at] = kept - h
    below = value()
    matrix[at] = kept
    assert found == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-6)
