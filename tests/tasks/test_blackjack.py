"""The game's rules against exact values, played through the environment's public interface."""

import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from mtrl_cli.light_import import light_packages
from tests.tasks.odds import (
    Policy,
    always_stand,
    basic_strategy,
    hit_below,
    mean_return,
    random_policy,
)

light_packages("openenv", "openenv.core", "openenv.core.env_server")

from mtrl_cli.tasks.blackjack.env import BlackjackAction, BlackjackEnvironment  # noqa: E402
from mtrl_cli.tasks.blackjack.task import Blackjack  # noqa: E402

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
EXACT = {
    "random": (random_policy, -0.392658),
    "always stand": (always_stand, -0.183443),
    "hit below 17": (hit_below(17), -0.080092),
    "hit below 15": (hit_below(15), -0.074395),
    "basic strategy": (basic_strategy, -0.042806),
}
GAMES = 12_000


def value(rank: str) -> int:
    return min(RANKS.index(rank) + 1, 10)


def best(cards: list[str]) -> tuple[int, bool]:
    hard = sum(map(value, cards))
    return (hard + 10, True) if "A" in cards and hard <= 11 else (hard, False)


def seen(text: str) -> tuple[list[str], str]:
    """The player's cards and the dealer's first card, read from an observation."""
    cards, _total, dealer = (part.split(": ")[1] for part in text.split(". ")[:3])
    return cards.split(), dealer.rstrip(".").split()[0]


def play(
    environment: BlackjackEnvironment, seed: int, policy: Policy, draw: random.Random
) -> float:
    observation = environment.reset(seed=seed)
    while not observation.done:
        cards, up = seen(observation.text)
        total, soft = best(cards)
        move = "hit" if draw.random() < policy(total, soft, value(up)) else "stand"
        observation = environment.step(BlackjackAction(action=move))
    return float(observation.reward)


def act(environment: BlackjackEnvironment, *moves: str) -> object:
    for move in moves:
        observation = environment.step(BlackjackAction(action=move))
    return observation


# --- exact values -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_the_exact_values_are_what_enumeration_gives(name: str) -> None:
    policy, expected = EXACT[name]
    assert mean_return(policy) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one == "random" else pytest.mark.long) for one in EXACT],
)
def test_the_environment_plays_by_these_rules(name: str) -> None:
    policy, expected = EXACT[name]
    draw, environment = random.Random(1), BlackjackEnvironment()
    returns = [play(environment, seed, policy, draw) for seed in range(GAMES)]
    error = statistics.stdev(returns) / GAMES**0.5
    assert abs(statistics.fmean(returns) - expected) < 4 * error
    assert set(returns) <= {-1.0, 0.0, 1.0}


def test_the_tasks_references_are_the_exact_values() -> None:
    references = Blackjack().references
    for name in ("random", "always stand", "hit below 17"):
        assert references[name] == pytest.approx(EXACT[name][1], abs=5e-4)
    assert references["optimum"] == pytest.approx(-0.042462, abs=5e-5)


def find(condition: Callable[[list[str], str], bool]) -> tuple[BlackjackEnvironment, str]:
    environment = BlackjackEnvironment()
    for seed in range(20_000):
        text = environment.reset(seed=seed).text
        if condition(*seen(text)):
            return environment, text
    raise AssertionError("no such deal")


def test_a_natural_goes_on_and_may_tie() -> None:
    environment, text = find(lambda cards, up: best(cards) == (21, True))
    assert "Total: soft 21" in text
    rewards = set()
    for seed in range(4000):
        cards, _up = seen(environment.reset(seed=seed).text)
        if best(cards)[0] == 21:
            rewards.add(environment.step(BlackjackAction(action="stand")).reward)
    assert rewards == {1.0, 0.0}  # a tie with the dealer's 21, and no bonus


def test_the_dealer_stands_on_every_17_and_draws_to_16() -> None:
    environment = BlackjackEnvironment()
    soft_17 = 0
    for seed in range(4000):
        environment.reset(seed=seed)
        text = environment.step(BlackjackAction(action="stand")).text
        dealer = text.split("Dealer: ")[1].split(". ")[0].split()
        assert best(dealer)[0] >= 17
        assert best(dealer[:-1])[0] < 17
        soft_17 += best(dealer) == (17, True)
    assert soft_17 > 10


def test_a_bust_loses_and_the_dealer_does_not_play() -> None:
    environment, _text = find(lambda cards, up: best(cards) == (20, False))
    for seed in range(200):
        cards, _up = seen(environment.reset(seed=seed).text)
        if best(cards) != (20, False):
            continue
        observation = environment.step(BlackjackAction(action="hit"))
        if observation.done:
            assert observation.reward == -1.0
            assert len(observation.text.split("Dealer: ")[1].split(". ")[0].split()) == 2
            assert observation.text.endswith("You lose.")
            return
    raise AssertionError("no bust")


# --- groups -----------------------------------------------------------------------------------


def hole(seed: int, member: int) -> str:
    environment = BlackjackEnvironment()
    environment.reset(seed=seed, member=member)
    text = environment.step(BlackjackAction(action="stand")).text
    return str(text.split("Dealer: ")[1].split(". ")[0].split()[1])


def chi_square(counts: Counter[str], expected: dict[str, float]) -> float:
    total = counts.total()
    return sum((counts[r] - total * p) ** 2 / (total * p) for r, p in expected.items())


CRITICAL = 39.1
"""The 0.01 % quantile of chi-square with 12 degrees of freedom."""


def test_members_share_what_the_player_sees_and_nothing_else() -> None:
    environment = BlackjackEnvironment()
    for seed in range(40):
        first = {environment.reset(seed=seed, member=member).text for member in range(8)}
        assert len(first) == 1
    assert sum(len({hole(seed, member) for member in range(8)}) > 1 for seed in range(40)) == 40
    environment.reset(seed=1, member=0)
    one = act(environment, "hit").text
    environment.reset(seed=1, member=1)
    assert act(environment, "hit").text != one


def test_the_hole_card_is_one_of_the_49_unseen_cards() -> None:
    environment = BlackjackEnvironment()
    cards, up = seen(environment.reset(seed=7).text)
    left = {rank: 4 - [*cards, up].count(rank) for rank in RANKS}
    counts = Counter(hole(7, member) for member in range(4000))
    assert chi_square(counts, {rank: n / 49 for rank, n in left.items()}) < CRITICAL


def test_over_all_seeds_every_card_is_as_likely() -> None:
    environment = BlackjackEnvironment()
    players: Counter[str] = Counter()
    ups: Counter[str] = Counter()
    holes: Counter[str] = Counter()
    for seed in range(6000):
        cards, up = seen(environment.reset(seed=seed, member=seed % 8).text)
        players[cards[seed % 2]] += 1
        ups[up] += 1
        holes[hole(seed, seed % 8)] += 1
    for counts in (players, ups, holes):
        assert chi_square(counts, dict.fromkeys(RANKS, 1 / 13)) < CRITICAL


# --- the environment as OpenEnv wants it --------------------------------------------------------


def test_the_same_seed_and_member_give_the_same_game() -> None:
    texts = []
    for _ in range(2):
        environment = BlackjackEnvironment()
        environment.reset(seed=3, member=5)
        texts.append(act(environment, "stand").text)
    assert texts[0] == texts[1]


def test_a_step_after_the_end_or_before_the_deal_is_an_error() -> None:
    environment = BlackjackEnvironment()
    with pytest.raises(RuntimeError, match="reset the environment before the first action"):
        act(environment, "hit")
    environment.reset(seed=1)
    act(environment, "stand")
    for move in ("hit", "stand"):
        with pytest.raises(RuntimeError, match="the game is over"):
            act(environment, move)
    assert not environment.reset(seed=1).done


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValidationError):
        BlackjackAction(action="fold")


def test_state_counts_the_steps_of_the_episode() -> None:
    environment = BlackjackEnvironment()
    environment.reset(seed=1, episode_id="e1")
    act(environment, "stand")
    assert (environment.state.episode_id, environment.state.step_count) == ("e1", 1)
    environment.reset(seed=2)
    assert environment.state.step_count == 0


# --- the task -----------------------------------------------------------------------------------


def test_the_conversation_opens_with_the_rules_and_the_hand() -> None:
    task = Blackjack("bj", -0.5)
    sample = task.sample(9)
    assert (sample.id, sample.seed, task.unfinished_reward) == ("bj/9", 9, -0.5)
    system, user = task.messages(sample, "Cards: 2 3.")
    assert system["role"] == "system"
    assert user == {"role": "user", "content": "Cards: 2 3."}
    assert task.reset_arguments(sample, 4) == {"seed": 9, "member": 4}
