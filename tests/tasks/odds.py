"""Exact mean returns of blackjack policies, by enumeration without replacement.

Independent of the game under test: it works on counts of card values (aces as 1, tens together)
and on probabilities, and shares no code with it.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

DECK = (4, 4, 4, 4, 4, 4, 4, 4, 4, 16)
"""How many cards of the values 1 (ace) … 10."""

Policy = Callable[[int, bool, int], float]
"""The probability to hit, given total, softness and the up card's value."""


def _best(cards: tuple[int, ...]) -> tuple[int, bool]:
    hard = sum(value * count for value, count in enumerate(cards, 1))
    soft = cards[0] > 0 and hard <= 11
    return (hard + 10 if soft else hard), soft


def _plus(cards: tuple[int, ...], value: int) -> tuple[int, ...]:
    return (*cards[: value - 1], cards[value - 1] + 1, *cards[value:])


def _minus(cards: tuple[int, ...], value: int) -> tuple[int, ...]:
    return (*cards[: value - 1], cards[value - 1] - 1, *cards[value:])


NONE = (0,) * 10


FALLING = np.array([[math.perm(n, k) for k in range(17)] for n in range(17)], dtype=float)
"""``FALLING[n, k]``: in how many ways k cards of n are drawn in order."""


@cache
def dealer_hands(up: int) -> tuple[Any, Any, Any, Any]:
    """Every way the dealer's draws can end: counts by value, cards, orders, final total.

    A final total of 22 stands for a bust. Draws are grouped by what they hold: their chance
    depends on the counts, and ``orders`` says in how many orders the dealer draws them.
    """
    orders: Counter[tuple[tuple[int, ...], int]] = Counter()

    def draw(drawn: tuple[int, ...]) -> None:
        total, _soft = _best(_plus(drawn, up))
        if total >= 17 and sum(drawn):
            orders[drawn, min(total, 22)] += 1
            return
        for value in range(1, 11):
            if drawn[value - 1] < DECK[value - 1]:
                draw(_plus(drawn, value))

    draw(NONE)
    counts = np.array([drawn for drawn, _total in orders])
    totals = np.array([total for _drawn, total in orders])
    return counts, counts.sum(1), np.array(list(orders.values()), dtype=float), totals


@cache
def stand_value(total: int, up: int, deck: tuple[int, ...]) -> float:
    """The player stands; the dealer's hole card is one of ``deck``, as good as its next draw."""
    counts, cards, orders, ends = dealer_hands(up)
    chance = orders.copy()
    for value in range(10):
        chance *= FALLING[deck[value], counts[:, value]]
    ways = np.array([math.perm(sum(deck), k) for k in range(cards.max() + 1)], dtype=float)
    chance /= ways[cards]
    wins = np.where(ends > 21, 1, np.sign(total - ends))
    return float(chance @ wins)


def mean_return(policy: Policy) -> float:
    """The exact mean return of ``policy``."""

    @cache
    def play(cards: tuple[int, ...], up: int, deck: tuple[int, ...]) -> float:
        total, soft = _best(cards)
        if total > 21:
            return -1.0
        hit = policy(total, soft, up)
        value = 0.0
        if hit < 1:
            value += (1 - hit) * stand_value(total, up, deck)
        if hit > 0:
            left = sum(deck)
            value += hit * sum(
                deck[v - 1] / left * play(_plus(cards, v), up, _minus(deck, v))
                for v in range(1, 11)
                if deck[v - 1]
            )
        return value

    mean = 0.0
    for first in range(1, 11):
        after_first = _minus(DECK, first)
        for second in range(1, 11):
            if not after_first[second - 1]:
                continue
            after_second = _minus(after_first, second)
            for up in range(1, 11):
                if not after_second[up - 1]:
                    continue
                chance = (
                    DECK[first - 1] / 52 * after_first[second - 1] / 51 * after_second[up - 1] / 50
                )
                cards = _plus(_plus(NONE, first), second)
                mean += chance * play(cards, up, _minus(after_second, up))
    return mean


def random_policy(total: int, soft: bool, up: int) -> float:
    return 0.5


def always_stand(total: int, soft: bool, up: int) -> float:
    return 0.0


def hit_below(points: int) -> Policy:
    return lambda total, soft, up: float(total < points)


def basic_strategy(total: int, soft: bool, up: int) -> float:
    """Hit or stand only; soft 18 against an ace hits."""
    if soft:
        return float(total <= 17 or (total == 18 and up in (9, 10, 1)))
    if total <= 11:
        return 1.0
    if total == 12:
        return float(up not in (4, 5, 6))
    if total <= 16:
        return float(up in (7, 8, 9, 10, 1))
    return 0.0
