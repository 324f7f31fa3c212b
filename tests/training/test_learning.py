"""The whole product learns: `mtrl train conf=blackjack`, as a user runs it."""

import pytest

from benchmarks.learning import run_seed


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_blackjack_is_learned_from_a_coin_flip() -> None:
    """The bounds are the promise of docs/learning.md, for a seed that is not in its table."""
    result = run_seed(7, ())
    before, after = result.before, result.after
    assert before["games"] == after["games"] == 6000
    assert before["mean"] == pytest.approx(-0.3927, abs=0.03)  # random play
    assert after["mean"] - before["mean"] >= 0.25
    assert after["invalid_call_share"] < 0.03


def test_a_short_run_learns_something_and_publishes_a_policy() -> None:
    overrides = ("train.steps=12", "eval.games=400", "run.trajectories=false")
    result = run_seed(7, overrides)
    assert len(result.rewards) == 12
    assert result.after["policy"] != result.before["policy"]
    assert result.after["mean"] - result.before["mean"] > 0.05
