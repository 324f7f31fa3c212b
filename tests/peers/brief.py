"""A task that a random model can learn in a dozen steps: one turn, the shorter the better.

A harness takes every turn for a call of the one tool, whatever was said, so no format has to be
learnt first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import AssistantTurn, Message, TaskSample, ToolCall

PROMPT = "Be brief."
LONGEST = 40


class Say(Action):
    text: str


class Heard(Observation):
    text: str


class BriefEnvironment(Environment):
    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Heard:
        return Heard(text=PROMPT)

    def step(self, action: Say, timeout_s: Any = None, **kwargs: Any) -> Heard:
        reward = 1.0 - min(len(action.text), LONGEST) / LONGEST
        return Heard(text="Thank you.", done=True, reward=reward)

    @property
    def state(self) -> State:
        return State()


class Listener:
    """The harness: what was said is what the tool is called with."""

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        return [{"role": "user", "content": observation}]

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        return [ToolCall("say", {"text": turn.text})]

    async def answer(self, call: ToolCall, text: str) -> str:
        return text

    async def close(self) -> None:
        return None


class BriefTask:
    tools = ()
    references: Mapping[str, float] = {}

    def __init__(self, name: str, unfinished_reward: float) -> None:
        self.name = name
        self.unfinished_reward = unfinished_reward

    def lender(self, metadata: Mapping[str, Any]) -> Lender[Listener]:
        async def make(key: str) -> Listener:
            return Listener()

        return Lender("harness", make, lambda harness: harness.close())

    def sample(self, seed: int) -> TaskSample:
        return TaskSample(id=f"{self.name}/{seed}", seed=seed)

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        return [{"role": "user", "content": observation}]

    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        return {"seed": sample.seed}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        return {"text": call.arguments["text"]}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])
