"""Group-relative advantages, per member of one group.

With rewards r_1 … r_G of one group and their mean m:

- ``mean``: r_i - m (Dr. GRPO, arXiv:2503.20783).
- ``mean_std``: (r_i - m) / s with s the population standard deviation (GRPO,
  arXiv:2402.03300, equation of section 4.1.2).
- ``leave_one_out``: r_i minus the mean of the others, which is (r_i - m) · G / (G - 1) (RLOO,
  arXiv:2402.14740).

A group of one, or one with equal rewards, gives 0 in every form, never NaN. Rewards are equal up
to the rounding of the sums that made them: 0.1 + 0.2 is no better than 0.3, and divided by a
standard deviation the difference would be as large as any other.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AdvantageForm = Literal["mean", "mean_std", "leave_one_out"]


_ROUNDING = 1e-9
"""Spread, relative to the largest reward, that is not a difference."""


def equal_rewards(rewards: Sequence[float]) -> bool:
    """Whether there is nothing to tell the members apart by."""
    largest = max(abs(reward) for reward in rewards)
    return max(rewards) - min(rewards) <= _ROUNDING * largest


def group_advantages(rewards: Sequence[float], form: AdvantageForm) -> NDArray[np.float64]:
    """The advantages of one group's members, float64 [G]; see the module's formulas."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.size < 2 or equal_rewards(rewards):
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    if form == "mean_std":
        scaled = centred / np.abs(centred).max()  # or the squares of tiny rewards would be 0
        return np.asarray(scaled / scaled.std())
    if form == "leave_one_out":
        return np.asarray(centred * (values.size / (values.size - 1)))
    return centred
