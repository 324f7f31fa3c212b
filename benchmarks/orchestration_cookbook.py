"""tinker-cookbook's `do_group_rollout` on the workload of `orchestration`, at its lightest: no
limits, no hooks, no deadline. Run by its own Python; see `orchestration` for the install."""

import asyncio
from collections.abc import Sequence

import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult, TrajectoryGroup

from benchmarks.workload import GROUP, Workload


class _Policy(TokenCompleter):
    def __init__(self, work: Workload) -> None:
        self._work, self._tokens, self._logprobs = work, work.sampled, work.logprobs

    async def __call__(self, model_input, stop, *, max_tokens=None):  # type: ignore[no-untyped-def]
        await self._work.think()
        return TokensWithLogprobs(list(self._tokens), list(self._logprobs), "stop")


class _Env(Env):
    def __init__(self, work: Workload) -> None:
        self._left = work.turns
        self._seen, self._answer = work.prompt, work.answer

    async def initial_observation(self):  # type: ignore[no-untyped-def]
        return tinker.ModelInput.from_ints(self._seen), [1]

    async def step(self, action, *, extra=None):  # type: ignore[no-untyped-def]
        self._left -= 1
        self._seen = self._seen + action + (self._answer if self._left else [])
        done = not self._left
        return StepResult(float(done), done, tinker.ModelInput.from_ints(self._seen), [1])


class _Builder(EnvGroupBuilder):
    def __init__(self, work: Workload) -> None:
        self._work = work

    async def make_envs(self) -> Sequence[Env]:
        return [_Env(self._work) for _ in range(GROUP)]


async def play(work: Workload) -> list[TrajectoryGroup]:
    """Play all groups of ``work`` at once."""
    policy = _Policy(work)
    rollouts = (do_group_rollout(_Builder(work), policy) for _ in range(work.episodes // GROUP))
    groups = await asyncio.gather(*rollouts)
    _check(groups, work)
    return groups


def _check(groups: Sequence[TrajectoryGroup], work: Workload) -> None:
    """Everything was played, and is kept."""
    text = work.text
    tokens = text.prompt + work.turns * text.sampled + (work.turns - 1) * text.answer
    members = [member for group in groups for member in group.trajectories_G]
    assert len(members) == work.episodes
    assert all(len(m.transitions) == work.turns for m in members)
    assert all(member.final_ob.length == tokens for member in members)
