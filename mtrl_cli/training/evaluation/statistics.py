"""Means with their uncertainty, and two policies compared on the same games.

- Standard error of a mean: s / sqrt(n) with the sample standard deviation s (divisor n - 1).
- Confidence interval of a mean: Student's t with n - 1 degrees of freedom (Student 1908).
- Confidence interval of a share: Wilson's score interval (Wilson 1927), which stays within
  [0, 1] and is sound for shares near its ends.
- Two policies on the same games: the differences game by game are the sample, so that what makes
  a game easy or hard for both cancels out (the paired t-test).

All intervals are of 95 %. A single value has no standard error and no interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Interval = tuple[float, float]

_Z = 1.959963984540054
"""The 0.975 quantile of the standard normal distribution."""

_FEW = {1: 12.706204736174698, 2: 4.302652729749464, 3: 3.182446305283710}
"""The 0.975 quantile of Student's t for so few degrees of freedom that the expansion is off."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of ``count`` values; ``se`` and ``interval`` are None where there is one."""

    count: int
    value: float
    se: float | None
    interval: Interval | None


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of at least one value, its standard error and its 95 % interval."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Mean(count, mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    se = math.sqrt(variance / count)
    reach = t_quantile(count - 1) * se
    return Mean(count, mean, se, (mean - reach, mean + reach))


def share_interval(hits: int, count: int) -> Interval:
    """Wilson's 95 % interval of the share ``hits`` / ``count``; ``count`` is at least 1.

    centre = (p + z²/2n) / (1 + z²/n), reach = z / (1 + z²/n) · sqrt(p(1 - p)/n + z²/4n²)
    """
    share, z2 = hits / count, _Z * _Z
    scale = 1 + z2 / count
    centre = (share + z2 / (2 * count)) / scale
    spread = share * (1 - share) / count + z2 / (4 * count * count)
    reach = _Z * math.sqrt(spread) / scale
    return (max(centre - reach, 0.0), min(centre + reach, 1.0))


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t with ``freedom`` degrees of freedom (at least 1).

    Abramowitz and Stegun 26.7.5, the expansion in 1 / freedom; off by less than 1e-3 from four
    degrees on.
    """
    if freedom in _FEW:
        return _FEW[freedom]
    x = _Z
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + math.fsum(term / freedom ** (power + 1) for power, term in enumerate(terms))
