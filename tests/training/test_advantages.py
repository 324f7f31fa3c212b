"""Group-relative advantages against values computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtrl_cli.training.step.advantages import AdvantageForm, group_advantages

FORMS: tuple[AdvantageForm, ...] = ("mean", "mean_std", "leave_one_out")


@pytest.mark.parametrize(
    ("rewards", "form", "expected"),
    [
        ([1, 3], "mean", [-1, 1]),
        ([1, 3], "mean_std", [-1, 1]),
        ([1, 3], "leave_one_out", [-2, 2]),
        ([0, 0, 0, 4], "mean", [-1, -1, -1, 3]),
        ([0, 0, 0, 4], "mean_std", [-1 / math.sqrt(3)] * 3 + [math.sqrt(3)]),
        ([0, 0, 0, 4], "leave_one_out", [-4 / 3] * 3 + [4]),
    ],
)
def test_by_hand(rewards: list[float], form: AdvantageForm, expected: list[float]) -> None:
    assert group_advantages(rewards, form) == pytest.approx(expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rewards", [[5.0], [-1.0, -1.0, -1.0], [0.1] * 7, [0.0, 0.0]])
def test_nothing_to_compare_with_gives_zero(form: AdvantageForm, rewards: list[float]) -> None:
    assert group_advantages(rewards, form).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("form", FORMS)
def test_rewards_that_differ_by_the_rounding_of_a_sum_are_equal(form: AdvantageForm) -> None:
    assert group_advantages([0.1 + 0.2, 0.3, 0.3], form).tolist() == [0, 0, 0]
    assert group_advantages([0.3 + 1e-6, 0.3, 0.3], form)[0] > 0


@example(rewards=[0.0, 2.2250738585072014e-308], form="mean_std")  # its square is 0
@given(
    rewards=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16),
    form=st.sampled_from(FORMS),
)
def test_finite_centred_and_in_the_order_of_the_rewards(
    rewards: list[float], form: AdvantageForm
) -> None:
    advantages = group_advantages(rewards, form)
    assert np.isfinite(advantages).all()
    assert abs(advantages.sum()) <= 1e-9 * (1 + np.abs(advantages).sum())
    order = np.argsort(rewards, kind="stable")
    assert (np.diff(advantages[order]) >= -1e-9).all()
