"""Trajectories as rows: one a trajectory, tokens with mask, logprobs and advantages beside them.

The arrays of a row have one length, that of its tokens: ``mask`` is 1 where a token was sampled,
``logprobs`` and ``advantages`` are 0 where it is 0. The advantage is the member's, on each of its
sampled tokens, before the token weights of ``train.weighting`` and without a KL term; see
`training.recorded`. It is null for a trajectory that was not trained.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.commits import Commit, History
from mtrl_cli.runs.trajectories import read_trajectories, trajectory_file
from mtrl_cli.training.groups import TrainingBatch
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.recorded import recorded_advantages, recorded_batch

Row = dict[str, Any]


def chosen_commits(history: History, folder: Path, step: int | None) -> list[Commit]:
    """The commits to export: of ``step``, or all that stand and have trajectories.

    Raises:
        UsageError: there are none.
    """
    known = [commit for commit in history.commits if trajectory_file(folder, commit.step).is_file()]
    chosen = [commit for commit in known if step in (None, commit.step)]
    if not chosen:
        have = f"steps {known[0].step} to {known[-1].step}" if known else "none"
        asked = "a step" if step is None else f"step {step}"
        raise UsageError(f"{folder.name} has no trajectories of {asked}; there are: {have}")
    return chosen


def step_batch(plan: TrainingPlan, folder: Path, commit: Commit) -> TrainingBatch:
    """The batch that the step was trained on, built again.

    Raises:
        MtrlError: its file is damaged.
    """
    return recorded_batch(plan, _records(trajectory_file(folder, commit.step)), commit.groups)


def rows(plan: TrainingPlan, folder: Path, commit: Commit) -> Iterator[Row]:
    """Every trajectory of a step, failed attempts included, in the order of the file.

    Raises:
        MtrlError: its file is damaged.
    """
    records = _records(trajectory_file(folder, commit.step))
    advantages = recorded_advantages(plan, recorded_batch(plan, records, commit.groups))
    for record in records:
        key = (record["group"], record["member"])
        advantage = None if record["reward"] is None else advantages.get(key)
        yield _row(commit, record, advantage)


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return list(read_trajectories(path))
    except (OSError, EOFError, ValueError) as error:
        raise MtrlError(f"{path} cannot be read: {error}; mtrl verify says more") from error


def _row(commit: Commit, record: Mapping[str, Any], advantage: float | None) -> Row:
    length = len(record["tokens"])
    mask, logprobs, values = [0] * length, [0.0] * length, [0.0] * length
    drawn = iter(record["logprobs"])
    for kind, start, end in record["spans"]:
        if kind == "sampled":
            for place in range(start, end):
                mask[place], logprobs[place] = 1, next(drawn)
                values[place] = advantage or 0.0
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
