"""Learning rate and KL coefficient over the steps, against values computed by hand."""

import pytest

from mtrl_cli.training.step.schedule import kl_coefficient, learning_rate


def test_warm_up_then_constant() -> None:
    rates = [learning_rate(1.0, "constant", 4, step, 10) for step in range(6)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_to_zero() -> None:
    assert [learning_rate(2.0, "linear", 0, step, 4) for step in range(4)] == [2, 1.5, 1, 0.5]
    cosine = [learning_rate(2.0, "cosine", 0, step, 4) for step in (0, 2)]
    assert cosine == pytest.approx([2.0, 1.0])
    assert learning_rate(2.0, "cosine", 0, 4, 4) == pytest.approx(0.0)


def test_kl_falls_linearly_and_stays_at_zero() -> None:
    values = [kl_coefficient(0.3, 120, step) for step in (0, 60, 120, 149)]
    assert values == pytest.approx([0.3, 0.15, 0.0, 0.0])
    assert kl_coefficient(0.3, None, 1000) == 0.3
