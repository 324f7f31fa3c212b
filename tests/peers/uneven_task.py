"""A task for Twinkle's mock sampler, whose completions are cut at their length whatever they say.

Every episode ends there, so its reward is the unfinished one; here that one differs from episode
to episode, and groups have something to learn from.
"""

import itertools

from mtrl_cli.testing.counted_world import CountedTask

_rewards = itertools.cycle([0.0, 1.0, 3.0])


class UnevenTask(CountedTask):
    """`CountedTask`, with another reward for each episode."""

    @property
    def unfinished_reward(self) -> float:
        return next(_rewards)

    @unfinished_reward.setter
    def unfinished_reward(self, value: float) -> None:
        pass  # what the configuration says
