"""Trajectories as rows: one a trajectory, tokens with mask, logprobs and advantages beside them.

The arrays of a row have one length, that of its tokens: ``mask`` is 1 where a token was sampled,
``logprobs`` and ``advantages`` are 0 where it is 0. ``advantage`` is the member's; on each of its
sampled tokens it stands less the KL penalty of that token, before the token weights of
``train.weighting``; see `training.step.recorded`. It is null for a trajectory that was not trained.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.commits import Commit, History
from mtrl_cli.runs.trajectories import read_trajectories, trajectory_file
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.step.batch import KlPenalty
from mtrl_cli.training.step.groups import TrainingBatch
from mtrl_cli.training.step.recorded import recorded_advantages, recorded_batch, recorded_penalty

Row = dict[str, Any]


def chosen_commits(history: History, folder: Path, step: int | None) -> list[Commit]:
    """The commits to export: of ``step``, or all that stand and have trajectories.

    Raises:
        UsageError: there are none.
    """
    known = [commit for commit in history.commits if trajectory_file(folder, commit.step).is_file()]
    chosen = [commit for commit in known if step in (None, commit.step)]
    if not chosen:
        if not known:
            raise UsageError(
                f"{folder.name} has no trajectories of a step: what is exported are those that a"
                " training run has committed (mtrl runs lists runs, mtrl trajectory shows others)"
            )
        have = f"steps {known[0].step} to {known[-1].step}"
        raise UsageError(f"{folder.name} has no trajectories of step {step}; there are: {have}")
    return chosen


def step_batch(
    plan: TrainingPlan, folder: Path, commit: Commit
) -> tuple[TrainingBatch, KlPenalty | None]:
    """The batch that the step was trained on, built again, and its KL penalty.

    Raises:
        MtrlError: its file is damaged.
    """
    records = _records(trajectory_file(folder, commit.step))
    batch = recorded_batch(plan, records, commit.groups)
    return batch, recorded_penalty(plan, records, batch, commit.step)


def lacks_reference(folder: Path, commit: Commit) -> bool:
    """Whether a step that trained holds no reference logprobs at all.

    Raises:
        MtrlError: its file is damaged.
    """
    if "trained" not in commit.groups.values():
        return False
    records = _records(trajectory_file(folder, commit.step))
    return not any("reference" in record for record in records)


def rows(plan: TrainingPlan, folder: Path, commit: Commit) -> Iterator[Row]:
    """Every trajectory of a step, failed attempts included, in the order of the file.

    Raises:
        MtrlError: its file is damaged.
    """
    records = _records(trajectory_file(folder, commit.step))
    batch = recorded_batch(plan, records, commit.groups)
    advantages = recorded_advantages(plan, batch)
    penalty = recorded_penalty(plan, records, batch, commit.step)
    for record in records:
        key = (record["group"], record["member"])
        advantage = None if record["reward"] is None else advantages.get(key)
        yield _row(commit, record, advantage, penalty.coefficient if penalty else 0.0)


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return list(read_trajectories(path))
    except OSError as error:
        raise MtrlError(f"{path} cannot be read: {error}; mtrl verify says more") from error


def _row(commit: Commit, record: Mapping[str, Any], advantage: float | None, kl: float) -> Row:
    length = len(record["tokens"])
    mask, logprobs, values = [0] * length, [0.0] * length, [0.0] * length
    drawn = iter(record["logprobs"])
    reference = iter(record.get("reference", record["logprobs"]))
    for kind, start, end in record["spans"]:
        if kind == "sampled":
            for place in range(start, end):
                mask[place], logprobs[place] = 1, next(drawn)
                penalty = kl * (logprobs[place] - next(reference))
                values[place] = 0.0 if advantage is None else advantage - penalty
    return {
        "run": record["run"],
        "step": commit.step,
        "group": record["group"],
        "member": record["member"],
        "refill": record["refill"],
        "task": record["task"]["id"],
        "task_seed": record["task"]["seed"],
        "policy": record["policy"],
        "policy_step": record["policy_step"],
        "outcome": commit.groups.get(record["group"]),
        "stop": record["stop"],
        "reward": record["reward"],
        "advantage": advantage,
        "failure": record["failure"],
        "tokens": record["tokens"],
        "mask": mask,
        "logprobs": logprobs,
        "advantages": values,
        "opening": record["opening"],
        "turns": record["turns"],
    }
