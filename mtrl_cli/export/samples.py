"""Groups as a distributed trainer reads them: one sample a trajectory, one column a field.

The columns have the names that trainers on TransferQueue use. A trajectory of T tokens whose first
P are its prompt becomes

- ``input_ids`` int64 [T], ``prompts`` int64 [P] and ``responses`` int64 [T - P]: all that follows
  the prompt, tool results included;
- ``response_mask`` int64 [T - P]: 1 where a token was sampled;
- ``rollout_log_probs`` and ``advantages`` float32 [T - P], 0 where the mask is 0. The advantage is
  the member's less the token's KL penalty, before the weights of ``train.weighting``;
- ``rewards`` float32 [1] and ``policy_version`` int64 [1], the step that made the policy.

A group has every member that the step could train, in the order of its members; groups that the
step could not train are not there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.export.rows import Row, rows
from mtrl_cli.runs.commits import Commit
from mtrl_cli.training.plan import TrainingPlan

Field = NDArray[np.int64] | NDArray[np.float32]

_TAGS = (
    "run", "step", "group", "member", "refill", "task", "task_seed", "policy", "policy_step",
    "outcome", "stop", "reward", "advantage",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    key: str
    fields: Mapping[str, Field]
    tag: Mapping[str, Any]
    """What it is, in JSON's types."""


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """The samples of one group. ``key`` is the same whenever the same commit is read."""

    run: str
    attempt: int
    """The attempt whose commit consumed the group."""
    group: int
    samples: tuple[Sample, ...]

    @property
    def key(self) -> str:
        return f"{self.run}/a{self.attempt}/g{self.group}"


def sample_groups(plan: TrainingPlan, folder: Path, commit: Commit) -> Iterator[SampleGroup]:
    """The groups that the step could train, in their order.

    Raises:
        MtrlError: its trajectory file is damaged.
    """
    trained = [row for row in rows(plan, folder, commit) if row["advantage"] is not None]
    trained.sort(key=itemgetter("group", "member"))
    for group, members in groupby(trained, key=itemgetter("group")):
        found = list(members)
        key = f"{folder.name}/a{commit.attempt}/g{group}"
        samples = tuple(_sample(f"{key}/m{row['member']}", row, len(found)) for row in found)
        yield SampleGroup(folder.name, commit.attempt, group, samples)


def _sample(key: str, row: Row, size: int) -> Sample:
    prompt = row["mask"].index(1)
    ids = np.array(row["tokens"], dtype=np.int64)
    fields: dict[str, Field] = {
        "input_ids": ids,
        "prompts": ids[:prompt],
        "responses": ids[prompt:],
        "response_mask": np.array(row["mask"][prompt:], dtype=np.int64),
        "rollout_log_probs": np.array(row["logprobs"][prompt:], dtype=np.float32),
        "advantages": np.array(row["advantages"][prompt:], dtype=np.float32),
        "rewards": np.array([row["reward"]], dtype=np.float32),
        "policy_version": np.array([row["policy_step"]], dtype=np.int64),
    }
    return Sample(key, fields, {**{name: row[name] for name in _TAGS}, "group_size": size})
