"""Sampling and training overlap as `train.max_policy_lag` promises, and never mix weights.

The service's times are scripted and long against everything else, so that ratios within one run
hold on a busy machine too. `benchmarks/pipeline.py` measures the same loop at length.
"""

import asyncio
from dataclasses import replace

import pytest

from benchmarks.pipeline import Case, equal, measure, pareto
from mtrl_cli.errors import MtrlError

SECONDS = 0.8


async def test_at_lag_one_a_step_takes_the_longer_of_sampling_and_training_not_both() -> None:
    synchronous = Case("equal", 0, equal(2), SECONDS / 2, SECONDS, steps=4)
    one, other = await asyncio.gather(
        measure(synchronous), measure(replace(synchronous, lag=1, steps=5, saturated=True))
    )
    assert one.wall >= 2 * SECONDS  # S + T: nothing overlaps
    assert SECONDS <= other.wall < 0.75 * one.wall  # max(S, T) is half of it
    for figures in (one, other):
        assert (figures.stale, figures.failed_episodes, figures.drift) == (0, 0, 0)


@pytest.mark.parametrize("snapshots", ["newest_only", "live"])
async def test_no_group_samples_other_weights_than_its_own(snapshots: str) -> None:
    """Heavy tails, so that groups of several versions are in flight; short times, so that the
    weights change in the middle of everything."""
    case = Case("heavy tail", 2, pareto(1.0, 10), 0.03, 0.03, steps=8)
    figures = await measure(replace(case, snapshots=snapshots))
    assert (figures.stale, figures.failed_episodes, figures.drift) == (0, 0, 0)


@pytest.mark.parametrize("snapshots", ["newest_only", "live"])
async def test_mixed_weights_would_be_noticed(snapshots: str) -> None:
    """A client that takes such a server for one that keeps its snapshots: what it gets is
    refused, and never trained."""
    case = Case("equal", 1, equal(4), 0.1, 0.03, steps=4, declared="immutable")
    with pytest.raises(MtrlError, match=r"asked for policy .*, but the server sampled"):
        await measure(replace(case, snapshots=snapshots))
