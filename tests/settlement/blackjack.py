"""The counted world in the words of blackjack, which the embedded model knows how to answer."""

from collections.abc import Mapping
from typing import Any

from mtrl_cli.rollout.ports import TaskSample, ToolCall
from mtrl_cli.tasks.blackjack.task import Blackjack


class CountedBlackjack(Blackjack):
    """Two calls long, whatever they are."""

    def reset_arguments(self, sample: TaskSample, member: int) -> dict[str, Any]:
        return {"seed": sample.seed, "member": member, "turns": 2}

    def action(self, call: ToolCall) -> dict[str, Any]:
        return {"value": int(call.arguments["action"] == "hit")}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return "Cards: 9 5. Total: hard 14. Dealer: 8."
