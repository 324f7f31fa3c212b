"""The game of the endurance run as it runs in a sandbox: one operation in a hundred goes wrong."""

from __future__ import annotations

import random
import time
from typing import Any

from mtrl_cli.tasks.blackjack.program import BlackjackProgram

SHARE = 0.01


class FlakyProgram(BlackjackProgram):
    """Blackjack that sometimes raises and sometimes is slow."""

    def reset(self, seed: int, member: int = 0) -> dict[str, Any]:
        trouble()
        return super().reset(seed, member)

    def step(self, action: str) -> dict[str, Any]:
        trouble()
        return super().step(action)


def trouble() -> None:
    """Half of what goes wrong raises, half of it is late."""
    drawn = random.random()  # of the system's seed: a refill meets another fate
    if drawn < SHARE / 2:
        raise RuntimeError("the game broke")
    if drawn < SHARE:
        time.sleep(0.2)
