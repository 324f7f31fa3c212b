"""Sweeps are multiplied out in order, and what is no sweep is left alone."""

import pytest

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.sweep import combinations


def test_every_combination_in_order() -> None:
    runs = combinations(["conf=blackjack", "seed=1,2", "group.size=range(4,12,4)"])
    assert [varied for varied, _ in runs] == [
        {"seed": "1", "group.size": "4"},
        {"seed": "1", "group.size": "8"},
        {"seed": "2", "group.size": "4"},
        {"seed": "2", "group.size": "8"},
    ]
    assert runs[3][1] == ["conf=blackjack", "seed=2", "group.size=8"]


def test_experiments_and_options_can_be_swept() -> None:
    runs = combinations(["conf=blackjack,records", "+server=local,tinker"])
    assert runs[1][1] == ["conf=blackjack", "+server=tinker"]
    assert runs[2][0] == {"conf": "records", "server": "local"}


@pytest.mark.parametrize(
    "argument",
    ["train.skip=[constant_reward,model_truncated]", 'name="a,b"', "nonsense", "seed=(("],
)
def test_what_is_no_sweep_stays_as_it_is(argument: str) -> None:
    assert combinations([argument]) == [({}, [argument])]


def test_a_sweep_must_be_countable_and_small() -> None:
    with pytest.raises(ConfigError, match="interval"):
        combinations(["train.learning_rate=interval(0,1)"])
    with pytest.raises(ConfigError, match="a glob names options"):
        combinations(["env=glob(open*)"])
    with pytest.raises(ConfigError, match=r"1,000,000 runs"):
        combinations(["seed=range(0,1000)", "eval.seed=range(0,1000)"])
