"""Evaluation: one policy over a fixed set of fresh games.

Each game is a group of one. The games depend on ``eval.seed`` and on nothing else, their seeds
come from a stream that training never draws from, and the sampling seeds are the same for every
policy, so that two policies are compared on the same games (see `games`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import SamplingParams, Task
from mtrl_cli.rollout.task_fault import sample_of_group
from mtrl_cli.training.evaluation.games import (
    Game,
    Played,
    game_of,
    pass_rule,
    unplayable,
)
from mtrl_cli.training.events import EVALUATION


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """``seed`` names the set of games; ``games`` is how many of them are played."""

    games: int
    seed: int
    sampling: SamplingParams
    budget: Budget

    def played(self, label: str, policy: str, games: list[Game]) -> Played:
        """The record of games that were played by this plan."""
        ordered = tuple(sorted(games, key=lambda game: game.index))
        return Played(label, policy, self.seed, self.sampling.temperature, ordered)


async def evaluate(
    rollout: ClientMultiTurnRollout,
    task: Task,
    policy: PolicySnapshot,
    plan: EvaluationPlan,
    *,
    run: str,
    label: str,
    heard: Callable[[Sequence[Group]], None] | None = None,
) -> Played:
    """Play the plan's games under ``policy``; ``heard`` gets them whole.

    Raises:
        MtrlError: not one game could be played; the text names the first failure.
    """
    groups = await rollout.run(list(game_admissions(task, policy, plan, run)))
    if heard is not None:
        heard(groups)
    passed = pass_rule(task)
    played = plan.played(label, policy.uri, [game_of(group, passed) for group in groups])
    if not played.scored:
        raise unplayable(f"evaluation {label}: no game could be played", groups)
    return played


def game_admissions(
    task: Task, policy: PolicySnapshot, plan: EvaluationPlan, run: str
) -> Iterator[GroupAdmission]:
    """The plan's games under one policy, made one by one.

    Raises:
        TaskBrokenError: the task has no sample for one.
    """
    for index in range(plan.games):
        yield GroupAdmission(
            run=run,
            stream=EVALUATION,
            run_seed=plan.seed,
            group=index,
            size=1,
            task=sample_of_group(task, seeds.evaluation_task(plan.seed, index), index),
            policy=policy.uri,
            policy_step=policy.step,
            sampling=plan.sampling,
            budget=plan.budget,
        )
