"""Means, intervals and comparisons, against numpy, published tables and sums by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.training.evaluation.statistics import mean_of, share_interval, t_quantile

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=200)


@given(VALUES)
def test_mean_and_standard_error_are_numpys(values: list[float]) -> None:
    mean = mean_of(values)
    array = np.array(values)
    assert mean.value == pytest.approx(array.mean(), abs=1e-9)
    assert mean.se == pytest.approx(array.std(ddof=1) / np.sqrt(len(values)), abs=1e-9)
    assert mean.interval is not None
    low, high = mean.interval
    assert low <= mean.value <= high
    assert high - low == pytest.approx(2 * t_quantile(len(values) - 1) * mean.se, abs=1e-9)


def test_one_value_has_no_error() -> None:
    assert (mean_of([0.5]).value, mean_of([0.5]).se, mean_of([0.5]).interval) == (0.5, None, None)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Tables of Student's t, two-sided 5 %.
    [
        *((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228)),
        *((30, 2.042), (100, 1.984), (1000, 1.962), (100_000, 1.960)),
    ],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1.5e-3)


@given(st.integers(1, 10_000), st.data())
def test_wilsons_interval_is_where_the_score_test_turns(count: int, data: st.DataObject) -> None:
    """Its ends solve (share - p)² = z² p (1 - p) / n for p."""
    hits = data.draw(st.integers(0, count))
    share, z2 = hits / count, 1.959963984540054**2
    roots = np.roots([1 + z2 / count, -2 * share - z2 / count, share * share]).real
    assert share_interval(hits, count) == pytest.approx(sorted(roots), abs=1e-7)


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.277533), (10, 0.722467, 1.0)])
def test_wilsons_interval_of_ten(hits: int, low: float, high: float) -> None:
    """By hand: z² / (10 + z²) = 0.277533."""
    assert share_interval(hits, 10) == pytest.approx((low, high), abs=1e-6)


def test_the_interval_of_a_mean_covers_it_in_95_of_100_samples() -> None:
    rng = np.random.default_rng(0)
    samples = rng.exponential(2.0, (2000, 60))
    bounds = [mean_of(sample.tolist()).interval for sample in samples]
    covered = sum(low <= 2.0 <= high for low, high in filter(None, bounds))
    assert 0.92 <= covered / len(samples) <= 0.97  # a skewed distribution costs a little
