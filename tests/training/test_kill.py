"""A run on the embedded server that is killed at any moment, and resumed each time, ends with the
weights of one that nothing happened to: bit for bit, at a lag of 0."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtrl_cli.runs.commits import read_history
from tests.cli.processes import command, environment, mtrl

TINY = (
    "train.steps=6",
    "train.checkpoint_every=2",
    "group.size=4",
    "group.per_step=2",
    "eval.games=4",
    "server.store=store",
)


def weights(cwd: Path, policy: str) -> dict[str, Any]:
    """The arrays of a sampler snapshot, from the store's own file."""
    model, kind, name = policy.removeprefix("tinker://").split("/", 2)
    path = cwd / "store" / "models" / model / kind / (name.replace("/", "+") + ".npz")
    with np.load(path) as saved:
        return {key: saved[key] for key in saved.files if key != "__meta__"}


def state(cwd: Path) -> dict[str, Any]:
    return dict(json.loads((cwd / "runs" / "latest" / "run.json").read_text()))


def undisturbed(cwd: Path) -> dict[str, Any]:
    cwd.mkdir()
    ended = mtrl("train", *TINY, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return weights(cwd, state(cwd)["policy"])


def killed(cwd: Path, draw: random.Random, *arguments: str) -> None:
    """Run, and be killed: some time after one more step than before was committed, or after the
    start where ``draw`` says so."""
    folder = cwd / "runs" / "latest"
    before = _lines(folder / "commits.jsonl")
    with (cwd / "out.txt").open("a") as out:
        process = subprocess.Popen(
            command("train", *arguments), cwd=cwd, env=environment(), stdout=out, stderr=out
        )
        wanted = before + draw.choice((0, 1, 2))
        deadline = time.monotonic() + 60
        while process.poll() is None and _lines(folder / "commits.jsonl") < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 1.5 if wanted == before else 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 1), pytest.param(10, 7, marks=pytest.mark.long)], ids=["2", "10"]
)
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_weights(
    tmp_path: Path, kills: int, seed: int
) -> None:
    expected = undisturbed(tmp_path / "whole")
    cwd, draw = tmp_path / "killed", random.Random(seed)
    cwd.mkdir()
    arguments: tuple[str, ...] = TINY
    for _ in range(kills):
        killed(cwd, draw, *arguments)
        if (cwd / "runs" / "latest").exists():
            arguments = ("--resume", "last")
    ended = mtrl("train", *arguments, cwd=cwd)
    assert ended.returncode == 0, ended.stderr

    folder = cwd / "runs" / "latest"
    history = read_history(folder / "commits.jsonl")
    assert [commit.step for commit in history.commits] == list(range(7))
    assert sorted(g for commit in history.commits for g in commit.groups) == list(range(12))
    record = state(cwd)
    assert record["status"] == "finished"
    assert record["borrows"] == {"held": 0, "quarantined": []}
    assert set(record["evaluation"]) == {"before", "after"}
    got = weights(cwd, record["policy"])
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(value, got[name]), name
