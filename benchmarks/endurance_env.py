"""The game of the endurance run in the run's own process."""

from typing import Any

from benchmarks.endurance_program import trouble
from mtrl_cli.tasks.blackjack.env import BlackjackAction, BlackjackEnvironment


class FlakyBlackjack(BlackjackEnvironment):
    """Blackjack that sometimes raises and sometimes is slow."""

    def reset(self, *arguments: Any, **named: Any) -> Any:
        trouble()
        return super().reset(*arguments, **named)

    def step(self, action: BlackjackAction, *arguments: Any, **named: Any) -> Any:
        trouble()
        return super().step(action, *arguments, **named)
