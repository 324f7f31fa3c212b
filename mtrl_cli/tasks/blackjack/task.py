"""The blackjack task: a model plays one game a conversation, by calling ``play``."""

from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.rollout.ports import Message, TaskSample, ToolCall, ToolSpec
from mtrl_cli.tasks.blackjack.text import SYSTEM_PROMPT, TOOLS


class Blackjack:
    """`mtrl_cli.rollout.ports.Task`, and the adapter to `BlackjackEnvironment`."""

    references: Mapping[str, float] = {
        "random": -0.393,
        "always stand": -0.183,
        "hit below 17": -0.080,
        "optimum": -0.0425,
    }
    """Exact mean rewards under these rules, rounded."""

    def __init__(self, name: str = "blackjack", unfinished_reward: float = -1.0) -> None:
        self.name = name
        self.unfinished_reward = unfinished_reward
        self.tools: Sequence[ToolSpec] = TOOLS

    def sample(self, seed: int) -> TaskSample:
        return TaskSample(id=f"{self.name}/{seed}", seed=seed)

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        return (
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": observation},
        )

    # --- the environment's side ---------------------------------------------------------------

    def reset_arguments(self, sample: TaskSample, member: int) -> dict[str, Any]:
        """Members of a group share what the player sees first, and nothing else."""
        return {"seed": sample.seed, "member": member}

    def action(self, call: ToolCall) -> dict[str, Any]:
        return {"action": call.arguments["action"]}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])
