"""Evaluations game by game: what counts, what is left out, what is paired with what."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.testing.world import World
from mtrl_cli.training.evaluation.games import (
    Evaluations,
    Game,
    Played,
    compare,
    game_of,
    pass_rule,
)
from tests.training.helpers import group_of


def played(returns: list[float | None], label: str = "eval", **facts: object) -> Played:
    games = tuple(
        Game(index, value, "done" if value is not None else "timeout", bool(value and value > 0))
        for index, value in enumerate(returns)
    )
    given = {"policy": f"p://{label}", "seed": 0, "temperature": 1.0, **facts}
    return Played(label=label, games=games, **given)  # type: ignore[arg-type]


REWARD = st.sampled_from([-1.0, -0.5, 0.0, 1.0, None])


@given(st.lists(st.tuples(REWARD, REWARD), min_size=1, max_size=80))
def test_a_comparison_is_numpys_paired_one(pairs: list[tuple[float | None, float | None]]) -> None:
    new, old = (played([pair[side] for pair in pairs]) for side in (0, 1))
    versus = compare(new, old)
    whole = [pair for pair in pairs if None not in pair]
    if not whole:
        assert versus is None
        return
    assert versus is not None
    differences = np.array([a - b for a, b in whole])  # type: ignore[operator]
    assert versus.mean == pytest.approx(differences.mean())
    assert (versus.pairs, versus.left_out) == (len(whole), len(pairs) - len(whole))
    counted = ((differences > 0).sum(), (differences == 0).sum(), (differences < 0).sum())
    assert (versus.wins, versus.ties, versus.losses) == counted
    if len(whole) > 1:
        assert versus.se == pytest.approx(differences.std(ddof=1) / np.sqrt(len(whole)))
    else:
        assert (versus.se, versus.interval) == (None, None)


def test_pairing_by_hand() -> None:
    """Differences 2, 0, -1, 1: mean 0.5, variance 5/3, s.e. sqrt(5/12); t with 3 degrees."""
    versus = compare(played([1, 0, -1, 1]), played([-1, 0, 0, 0]))
    assert versus is not None
    assert (versus.mean, versus.wins, versus.ties, versus.losses) == (0.5, 2, 1, 1)
    assert versus.se == pytest.approx((5 / 12) ** 0.5)
    reach = 3.182446 * (5 / 12) ** 0.5
    assert versus.interval == pytest.approx((0.5 - reach, 0.5 + reach))


def test_only_the_same_games_played_the_same_way_are_paired() -> None:
    longer, shorter = played([1, 1, -1, 0]), played([0, 1])
    versus = compare(shorter, longer)
    assert versus is not None
    assert (versus.pairs, versus.left_out, versus.mean) == (2, 0, -0.5)
    assert compare(played([1], seed=1), played([1])) is None
    assert compare(played([1], temperature=0.0), played([1])) is None


def test_figures_count_unfinished_episodes_and_leave_failed_games_out() -> None:
    groups = [
        group_of(1.0),
        group_of(-1.0, group=1, stop=Stop.MAX_TURNS),  # with its unfinished reward
        group_of(-1.0, group=2, stop=Stop.TURN_TOKENS),
        group_of(0.0, group=3),
    ]
    games = [game_of(group, lambda reward: reward > 0) for group in groups]
    games.append(Game(4, None, "env_failure"))
    result = Played("eval", "p", 0, 1.0, tuple(games)).figures()
    assert (result.games, result.failed, result.unfinished, result.passed) == (4, 1, 2, 1)
    assert result.mean == -0.25
    assert dict(result.stops) == {"done": 2, "max_turns": 1, "turn_tokens": 1}


def test_a_task_may_say_when_an_episode_has_passed() -> None:
    class Own(World):
        def passed(self, reward: float) -> bool:
            return reward >= 0

    assert [pass_rule(World())(reward) for reward in (-1.0, 0.0, 0.5)] == [False, False, True]  # type: ignore[arg-type]
    assert pass_rule(Own())(0.0)  # type: ignore[arg-type]


def test_an_evaluation_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    book = Evaluations(tmp_path)
    before, after = played([0, -1, None], "before"), played([1, 0, 1], "step 25")
    assert book.record(before).versus is None
    result = book.record(after, against="before")
    assert book.read("before") == before
    assert book.read("step 25") == after
    assert result.versus is not None
    assert (result.versus.against, result.versus.mean, result.versus.left_out) == (
        "p://before",
        1.0,
        1,
    )
    assert book.record(after, against="never").versus is None
    (tmp_path / "evaluations" / "before.json").write_text('{"games": 3')
    with pytest.raises(MtrlError, match=r"before\.json is damaged"):
        book.read("before")
