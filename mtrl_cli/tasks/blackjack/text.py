"""What the model reads of a blackjack game: the system prompt, the tool, the observations."""

from __future__ import annotations

from typing import Any

from mtrl_cli.tasks.blackjack.game import Game, total

SYSTEM_PROMPT = "You play blackjack. Call play once a turn."

TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "play",
            "description": "Take a card or stop.",
            "parameters": {
                "type": "object",
                "properties": {"action": {"type": "string", "enum": ["hit", "stand"]}},
                "required": ["action"],
                "additionalProperties": False,
            },
        },
    },
)


def hand(game: Game) -> str:
    """The player's view of a running game; it restates the whole hand after each card."""
    mine = total(game.player)
    kind = "soft" if mine.soft else "hard"
    return f"Cards: {' '.join(game.player)}. Total: {kind} {mine.points}. Dealer: {game.dealer[0]}."


def result(game: Game) -> str:
    """The final view: both hands and who won."""
    outcome = {1.0: "You win.", 0.0: "Tie.", -1.0: "You lose."}[game.reward or 0.0]
    mine = f"Cards: {' '.join(game.player)}. Total: {total(game.player).points}."
    theirs = f"Dealer: {' '.join(game.dealer)}. Total: {total(game.dealer).points}."
    return f"{mine} {theirs} {outcome}"
