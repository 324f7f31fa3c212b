"""Blackjack for a sandbox: plain data in and out, and nothing but the standard library."""

from __future__ import annotations

from typing import Any

from mtrl_cli.tasks.blackjack.game import Game
from mtrl_cli.tasks.blackjack.text import hand, result


class BlackjackProgram:
    """The same game as `mtrl_cli.tasks.blackjack.env`, with the same words."""

    def __init__(self) -> None:
        self._game: Game | None = None

    def reset(self, seed: int, member: int = 0) -> dict[str, Any]:
        """Deal a game. The same seed and member give the same game, in every process."""
        self._game = Game.deal(seed, member)
        return {"text": hand(self._game)}

    def step(self, action: str) -> dict[str, Any]:
        if self._game is None:
            raise RuntimeError("no game is dealt: reset before the first action")
        if action == "hit":
            self._game.hit()
        elif action == "stand":
            self._game.stand()
        else:
            raise ValueError(f"{action!r} is no action: hit or stand")
        if self._game.over:
            observation = {"text": result(self._game)}
            return {"observation": observation, "reward": self._game.reward, "done": True}
        return {"observation": {"text": hand(self._game)}, "reward": 0.0, "done": False}
