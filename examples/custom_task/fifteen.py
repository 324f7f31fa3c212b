"""A task that the embedded model learns: come as close to 15 as you can. Played by fifteen.yaml."""

import random

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from mtrl_cli.tasks.blackjack.env import BlackjackAction, BlackjackObservation
from mtrl_cli.tasks.blackjack.task import Blackjack


class FifteenEnvironment(Environment):  # the world; each point away from 15 costs a fifth
    action_class = BlackjackAction  # hit or stand

    def reset(self, seed=None, episode_id=None, member=0, **_):
        shared = random.Random(seed)  # a group's members see the same two cards ...
        self.cards = [shared.randint(2, 10), shared.randint(2, 10)]
        self.deck = random.Random(f"{seed}/{member}")  # ... and draw different ones
        return self.hand()

    def hand(self):  # in blackjack's words: other ones the embedded model cannot read
        cards, total = " ".join(map(str, self.cards)), sum(self.cards)
        return BlackjackObservation(text=f"Cards: {cards}. Total: hard {total}. Dealer: 15.")

    def step(self, action, timeout_s=None, **_):
        if action.action == "hit":
            self.cards.append(self.deck.randint(2, 10))
            if sum(self.cards) < 20:
                return self.hand()
        total = sum(self.cards)
        reward = max(1 - abs(15 - total) / 5, -1.0)
        return BlackjackObservation(text=f"Total: {total}.", done=True, reward=reward)

    @property
    def state(self):
        return State()


class Fifteen(Blackjack):  # the words: blackjack's tool, seeds and actions, another prompt
    references = {"coin flips": 0.05, "always stand": 0.23, "optimum": 0.598}

    def messages(self, sample, observation):
        rules = "You play fifteen. Call play once a turn."
        return [{"role": "system", "content": rules}, {"role": "user", "content": observation}]
