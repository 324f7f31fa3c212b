"""Group-relative advantages, per member of one group.

With rewards r_1 … r_G of one group and their mean m:

- ``mean``: r_i - m (Dr. GRPO, arXiv:2503.20783).
- ``mean_std``: (r_i - m) / s with s the population standard deviation (GRPO,
  arXiv:2402.03300, equation of section 4.1.2).
- ``leave_one_out``: r_i minus the mean of the others, which is (r_i - m) · G / (G - 1) (RLOO,
  arXiv:2402.14740).

A group of one, or one with equal rewards, gives 0 in every form, never NaN.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AdvantageForm = Literal["mean", "mean_std", "leave_one_out"]


def group_advantages(rewards: Sequence[float], form: AdvantageForm) -> NDArray[np.float64]:
    """The advantages of one group's members, float64 [G]; see the module's formulas."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.size < 2 or values.max() == values.min():
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    if form == "mean_std":
        return np.asarray(centred / values.std())
    if form == "leave_one_out":
        return np.asarray(centred * (values.size / (values.size - 1)))
    return centred
