"""The audit's figures, against values worked out by hand or by numpy from their definitions."""

import numpy as np
import pytest

from mtrl_cli.servers.interface import LossSpec
from mtrl_cli.training.step.parity import Pair, likely_cause, parity_figures, ratio_figures

PLAIN = LossSpec("importance_sampling", {})
CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


def pair(sampled: list[float], again: list[float], start: int = 5) -> Pair:
    positions = np.arange(start, start + len(sampled))
    return Pair(positions, np.array(sampled), np.array(again))


def of_ratios(*ratios: float) -> list[Pair]:
    return [pair([-1.0] * len(ratios), [-1 + float(np.log(ratio)) for ratio in ratios])]


def test_differences_over_all_trajectories() -> None:
    found = parity_figures([pair([-1.0, -2.0], [-1.5, -2.0]), pair([-3.0], [-2.75])], limit=0.3)
    assert found == {
        "parity_max": 0.5,
        "parity_mean": pytest.approx(0.25),
        "audit/above": pytest.approx(1 / 3),
        "audit/zeros": 0,
        "audit/tokens": 3,
    }


def test_zeros_count_where_the_token_is_far_from_certain() -> None:
    told = pair([0.0, 0.0, 0.0, -2.0], [-0.001, -0.11, -3.0, -2.0])
    assert parity_figures([told], limit=1)["audit/zeros"] == 0.5


def test_ratios_of_two_tokens() -> None:
    # r = 2 and 1/2: -log r sums to 0; r - 1 - log r is 1 - log 2 and -1/2 + log 2.
    found = ratio_figures(of_ratios(2.0, 0.5), [np.ones(2, np.float32)], PLAIN)
    assert found["audit/kl_k1"] == pytest.approx(0, abs=1e-12)
    assert found["audit/kl_k3"] == pytest.approx(0.25)
    assert found["audit/ratio_p50"] == pytest.approx(1.25)
    assert found["audit/ratio_max"] == pytest.approx(2)
    assert found["audit/ess"] == pytest.approx(2.5**2 / (2 * 4.25))
    assert "audit/clipped" not in found


def test_percentiles_are_numpys() -> None:
    rng = np.random.default_rng(4)
    ratios = np.exp(0.3 * rng.standard_normal(1000))
    found = ratio_figures(of_ratios(*ratios), [np.ones(1000, np.float32)], PLAIN)
    for name, percent in (("p1", 1), ("p50", 50), ("p99", 99)):
        assert found[f"audit/ratio_{name}"] == pytest.approx(np.percentile(ratios, percent))


def test_estimates_come_near_the_kl_of_known_distributions() -> None:
    q, p = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    drawn = np.random.default_rng(0).choice(3, size=200_000, p=q)
    sampled = Pair(np.arange(len(drawn)), np.log(q)[drawn], np.log(p)[drawn])
    found = ratio_figures([sampled], [np.ones(len(drawn), np.float32)], PLAIN)
    exact = float((q * np.log(q / p)).sum())
    assert found["audit/kl_k1"] == pytest.approx(exact, abs=2e-3)
    assert found["audit/kl_k3"] == pytest.approx(exact, abs=5e-4)


@pytest.mark.parametrize(
    ("loss", "config", "share"),
    [
        # ppo: no gradient above the bound for a good token, below it for a bad one.
        ("ppo", CLIP, 2 / 6),
        ("ppo", {**CLIP, "clip_high_threshold": 1.4}, 1 / 6),
        # cispo: the ratio is bounded whatever the advantage.
        ("cispo", CLIP, 4 / 6),
        ("cispo", {"clip_high_threshold": 1.2}, 2 / 6),
        ("gspo", CLIP, None),
    ],
)
def test_the_share_that_is_clipped(loss: str, config: dict[str, float], share: float) -> None:
    ratios = (1.3, 1.3, 0.7, 0.7, 1.19, 0.81)
    advantages = [np.array([1, -1, 1, -1, 1, -1], np.float32)]
    found = ratio_figures(of_ratios(*ratios), advantages, LossSpec(loss, config))
    assert found.get("audit/clipped") == (None if share is None else pytest.approx(share))


def test_a_huge_difference_overflows_nothing() -> None:
    found = ratio_figures([pair([-900.0, -1.0], [-1.0, -1.0])], [np.ones(2, np.float32)], PLAIN)
    assert found["audit/ess"] == pytest.approx(0.5)
    assert found["audit/ratio_max"] == pytest.approx(np.exp(300))
    assert all(np.isfinite(value) for value in found.values())


TRUE = [-0.1, -2.0, -0.7, -3.0, -0.2, -1.1]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([TRUE[-1], *TRUE[:-1]], "the previous token"),
        ([*TRUE[1:], TRUE[0]], "the next token"),
        ([TRUE[0], 0.0, *TRUE[2:]], "1 of the sampler's logprobs are exactly 0"),
        ([value / 2 for value in TRUE], ""),
    ],
)
def test_what_it_looks_like(told: list[float], says: str) -> None:
    cause = likely_cause([pair(told, TRUE)])
    assert says in cause
    assert bool(says) == bool(cause)


def test_a_shift_is_looked_for_within_a_turn_only() -> None:
    """Two turns, each shifted on its own; the last token of one is no neighbour of the next."""
    turns = [pair([TRUE[-1], *TRUE[:-1]], TRUE, start) for start in (3, 40)]
    both = Pair(*(np.concatenate([getattr(turn, n) for turn in turns]) for n in Pair.__slots__))
    assert "(mean difference 0): they are shifted by one" in likely_cause([both])
