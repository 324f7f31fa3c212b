"""A task in one file: find the hidden number. Played by guess.yaml, beside it."""

import random

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from mtrl_cli.rollout.ports import TaskSample


class Guess(Action):
    number: int


class Hint(Observation):
    text: str


class GuessEnvironment(Environment):  # the world; each guess but the right one costs a tenth
    action_class = Guess

    def reset(self, seed=None, episode_id=None, **_):
        self.hidden = random.Random(seed).randint(1, 20)
        return Hint(text="The number is between 1 and 20.")

    def step(self, action, timeout_s=None, **_):
        if action.number == self.hidden:
            return Hint(text="Right.", done=True, reward=1.0)
        word = "higher" if action.number < self.hidden else "lower"
        return Hint(text=f"It is {word}.", reward=-0.1)

    @property
    def state(self):
        return State()


class GuessTask:  # the words: prompt, tool, what a call means, what the model reads
    references = {"halving": 0.73}  # drawn beside the learning curve
    number = {"type": "integer", "minimum": 1, "maximum": 20}
    schema = {"type": "object", "properties": {"number": number}, "required": ["number"]}
    tools = ({"type": "function", "function": {"name": "guess", "parameters": schema}},)

    def __init__(self, name, unfinished_reward):
        self.name, self.unfinished_reward = name, unfinished_reward

    def sample(self, seed):
        return TaskSample(id=f"{self.name}/{seed}", seed=seed)

    def messages(self, sample, observation):
        return [{"role": "user", "content": f"{observation} Find it: call guess once a turn."}]

    def reset_arguments(self, sample, member):
        return {"seed": sample.seed}

    def action(self, call):
        return {"number": call.arguments["number"]}

    def observation_text(self, observation):
        return observation["text"]
