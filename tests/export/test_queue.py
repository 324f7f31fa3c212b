"""Groups for a distributed trainer: the columns, and that each group is sent exactly once. The
queue is in memory here; tests/peers/test_transferqueue.py has the real one."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.export.samples import Sample, SampleGroup, sample_groups
from mtrl_cli.export.sending import MARKS, send
from mtrl_cli.runs.commits import read_history
from mtrl_cli.training.plan import TrainingPlan
from tests.report.folder import RUN, make_run


class MemoryQueue:
    """A queue that keeps what it gets, by partition and key, and counts what it was given."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Mapping[str, Any]]] = {}
        self.given: list[str] = []
        self.breaks_at: int | None = None

    def tags(self, partition: str) -> Mapping[str, Mapping[str, Any]]:
        return dict(self.held.get(partition, {}))

    def put(self, partition: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if len(self.given) == self.breaks_at:
                raise ConnectionError("the queue is gone")
            self.given.append(sample.key)
            self.mark(partition, sample.key, sample.tag)

    def mark(self, partition: str, key: str, tag: Mapping[str, Any]) -> None:
        self.held.setdefault(partition, {})[key] = dict(tag)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[SampleGroup]:
    run = make_run(tmp_path_factory.mktemp("runs"))
    plan = TrainingPlan(resolve(compose(str(run / "config.yaml"))))
    return list(sample_groups(plan, run, read_history(run / "commits.jsonl").commits[1]))


def keys(groups: Sequence[SampleGroup]) -> list[str]:
    return [sample.key for group in groups for sample in group.samples]


def test_the_columns_of_a_sample(groups: list[SampleGroup]) -> None:
    assert keys(groups) == [f"{RUN}/a1/g{g}/m{m}" for g in (0, 1) for m in range(4)]
    sample = groups[0].samples[0]
    advantage = 1.5 / math.sqrt(0.75)  # returns 1, −1, −1, −1
    expected = {
        "input_ids": [632, 592, 198, 607, 627],
        "prompts": [632, 592, 198],
        "responses": [607, 627],
        "response_mask": [1, 1],
        "rollout_log_probs": [-0.5, -0.25],
        "advantages": [advantage, advantage],
        "rewards": [1.0],
        "policy_version": [0],
    }
    assert {name: list(value) for name, value in sample.fields.items()} == {
        name: pytest.approx(value) for name, value in expected.items()
    }
    whole = {name for name, value in sample.fields.items() if value.dtype == np.int64}
    assert whole == {"input_ids", "prompts", "responses", "response_mask", "policy_version"}
    assert json.loads(json.dumps(sample.tag)) == {
        "run": RUN,
        "step": 1,
        "group": 0,
        "member": 0,
        "refill": 0,
        "task": "blackjack/0",
        "task_seed": 0,
        "policy": "p0",
        "policy_step": 0,
        "outcome": "trained",
        "stop": "done",
        "reward": 1.0,
        "advantage": pytest.approx(advantage),
        "group_size": 4,
    }


def test_a_group_is_sent_once_also_when_it_is_consumed(groups: list[SampleGroup]) -> None:
    queue = MemoryQueue()
    first = send(queue, groups, "train")
    assert (first.groups, first.samples, first.already) == (2, 8, 0)
    assert queue.given == keys(groups)
    queue.held.pop("train")  # the trainer has consumed and cleared everything
    again = send(queue, groups, "train")
    assert (again.groups, again.samples, again.already, again.notes) == (0, 0, 2, ())
    assert queue.given == keys(groups)


def test_an_export_that_broke_off_is_completed(groups: list[SampleGroup]) -> None:
    queue = MemoryQueue()
    queue.breaks_at = 6
    with pytest.raises(ConnectionError):
        send(queue, groups, "train")
    assert queue.tags(MARKS)[groups[1].key] == {"state": "sending"}
    # The real queue registers a put's keys before it takes the data.
    for sample in groups[1].samples:
        queue.mark("train", sample.key, sample.tag)
    queue.breaks_at = None
    assert send(queue, groups, "train").already == 1
    assert sorted(queue.held["train"]) == keys(groups)


def test_a_group_whose_samples_may_have_been_consumed_is_named(groups: list[SampleGroup]) -> None:
    queue = MemoryQueue()
    queue.mark(MARKS, groups[0].key, {"state": "sending"})
    delivery = send(queue, groups, "train")
    assert queue.given == keys(groups[1:])
    (note,) = delivery.notes
    assert f"kv_clear('{groups[0].key}', 'mtrl-sent')" in note


def test_a_group_that_a_resume_played_again_is_sent_and_told(groups: list[SampleGroup]) -> None:
    queue = MemoryQueue()
    queue.mark(MARKS, f"{RUN}/a1/g0", {"state": "sent"})
    replayed = SampleGroup(RUN, 2, 0, groups[0].samples)
    delivery = send(queue, [replayed], "train")
    assert delivery.groups == 1
    assert "the queue was given both" in delivery.notes[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "transferqueue"], "takes --to ADDRESS"),
        (["--format", "transferqueue", "--to", "auto", "--out", "x"], "takes --to ADDRESS"),
        (["--to", "auto"], "--to goes with --format transferqueue"),
    ],
)
def test_where_to_is_asked_for_in_one_line(tmp_path: Path, arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["export", RUN, "--runs-dir", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr
