"""Evaluation: the mean return of one policy over a fixed set of fresh games.

Each game is a group of one. The games depend on ``eval.seed`` and on nothing else, their seeds
come from a stream that training never draws from, and the sampling seeds are the same for every
policy, so that two policies are compared on the same games. An unfinished episode counts with
its ``unfinished_reward``; a game that failed for good is left out and counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import SamplingParams, Task
from mtrl_cli.rollout.trajectory import Trajectory
from mtrl_cli.training.events import Evaluated


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """``seed`` names the set of games; ``games`` is how many of them are played."""

    games: int
    seed: int
    sampling: SamplingParams
    budget: Budget


async def evaluate(
    rollout: ClientMultiTurnRollout,
    task: Task,
    policy: PolicySnapshot,
    plan: EvaluationPlan,
    *,
    run: str,
    label: str,
) -> Evaluated:
    """Play the plan's games under ``policy``.

    Raises:
        MtrlError: not one game could be played; the text names the first failure.
    """
    groups = await rollout.run(_admissions(task, policy, plan, run))
    games = [member for group in groups for member in group.members]
    if not games:
        raise MtrlError(f"evaluation {label}: no game could be played: {first_failure(groups)}")
    returns = [game.reward for game in games if game.reward is not None]
    mean = math.fsum(returns) / len(returns)
    return Evaluated(
        label=label,
        policy=policy.uri,
        mean=mean,
        se=_standard_error(returns, mean),
        games=len(returns),
        invalid_call_share=invalid_share(games),
    )


def invalid_share(games: Sequence[Trajectory]) -> float:
    """The share of turns that did not end in a tool call that the environment executed."""
    turns = [turn for game in games for turn in game.turns]
    invalid = sum(not turn.calls or any(call.error for call in turn.calls) for turn in turns)
    return invalid / len(turns) if turns else 0.0


def first_failure(groups: Sequence[Group]) -> str:
    """Why the first failed attempt failed, for an error message."""
    failures = [failure.failure for group in groups for failure in group.failures]
    return next((failure for failure in failures if failure), "unknown reason")


def _admissions(
    task: Task, policy: PolicySnapshot, plan: EvaluationPlan, run: str
) -> list[GroupAdmission]:
    return [
        GroupAdmission(
            run=run,
            stream="eval",
            run_seed=plan.seed,
            group=index,
            size=1,
            task=task.sample(seeds.evaluation_task(plan.seed, index)),
            policy=policy.uri,
            policy_step=policy.step,
            sampling=plan.sampling,
            budget=plan.budget,
        )
        for index in range(plan.games)
    ]


def _standard_error(values: Sequence[float], mean: float) -> float:
    """The standard error of the mean, with the sample standard deviation."""
    if len(values) < 2:
        return 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))
