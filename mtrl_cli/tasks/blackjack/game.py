"""One game of blackjack, with the rules of OpenSpiel's ``blackjack``.

One fresh deck of 52 cards a game. The player is dealt two cards, the dealer a hidden (hole)
and an open (up) card. The player hits or stands; going over 21 ends the game at -1. When the
player stands, the dealer draws up to 16 and stands on every 17, soft ones included; then the
higher total wins (+1), equal totals tie (0), and a natural counts like any other 21.

A game is drawn from two seeds, so that the members of a GRPO group can share what the player
sees first and nothing else: ``seed`` fixes the player's two cards and the up card; ``member``
fixes the order of the remaining 49 cards (the first of them is the hole card).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
DEALER_STANDS_ON = 17
BUST = 21


@dataclass(frozen=True)
class Total:
    """The best total of a hand; soft when an ace in it counts 11."""

    points: int
    soft: bool

    @property
    def bust(self) -> bool:
        return self.points > BUST


def total(cards: list[str]) -> Total:
    """The best total of ``cards`` (ranks): one ace counts 11 where that does not bust."""
    hard = sum(min(RANKS.index(card) + 1, 10) for card in cards)
    soft = "A" in cards and hard + 10 <= BUST
    return Total(hard + 10 if soft else hard, soft)


@dataclass
class Game:
    """A running game. ``reward`` is None until the game is over."""

    player: list[str]
    dealer: list[str]
    """The up card first, then the hole card, then what the dealer drew."""
    deck: list[str] = field(repr=False)
    """The cards not dealt yet; the next one is the last."""
    reward: float | None = None

    @classmethod
    def deal(cls, seed: int, member: int = 0) -> Game:
        deck = [rank for rank in RANKS for _suit in range(4)]
        shared = random.Random(f"blackjack/{seed}")
        first, second, up = (deck.pop(shared.randrange(len(deck))) for _ in range(3))
        random.Random(f"blackjack/{seed}/{member}").shuffle(deck)
        return cls(player=[first, second], dealer=[up, deck.pop()], deck=deck)

    @property
    def over(self) -> bool:
        return self.reward is not None

    def hit(self) -> None:
        """Deal the player one card; a bust ends the game at -1."""
        self._check_running()
        self.player.append(self.deck.pop())
        if total(self.player).bust:
            self.reward = -1.0

    def stand(self) -> None:
        """Play the dealer's hand and settle the game."""
        self._check_running()
        while total(self.dealer).points < DEALER_STANDS_ON:
            self.dealer.append(self.deck.pop())
        mine, theirs = total(self.player).points, total(self.dealer)
        if theirs.bust or mine > theirs.points:
            self.reward = 1.0
        else:
            self.reward = 0.0 if mine == theirs.points else -1.0

    def _check_running(self) -> None:
        if self.over:
            raise RuntimeError("the game is over: reset the environment before the next action")
