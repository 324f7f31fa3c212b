"""Resuming on a scripted server: what is asked of it, what stands, which groups are played."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.config.schema import Experiment
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.files import read_records
from mtrl_cli.runs.stop import Stage, StopRequest
from mtrl_cli.runs.takeover import StillRunning
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import Resumable, RunFinished, RunStarted, StepFinished
from mtrl_cli.training.run import resume, train
from tests.training.runs import experiment
from tests.training.test_end_to_end import Player

PER_STEP = 2
LEARNS = ("group.per_step=2", "train.kl=0.1")


def made(server: ScriptedPolicyServer, runs: Path, *overrides: str) -> tuple[Experiment, str]:
    where = (f'server.base_url="{server.url}"', f'run.dir="{runs}"')
    return experiment(*LEARNS, *where, *overrides)


def folder_of(runs: Path) -> Path:
    [folder] = [path for path in runs.iterdir() if not path.is_symlink()]
    return folder


def stopping(stop: StopRequest, step: int, stage: Stage = Stage.DRAIN) -> Observer:
    """Asks for a stop when ``step`` is committed."""

    def observe(event: object) -> None:
        if isinstance(event, StepFinished) and event.step == step:
            stop.request(stage)

    return observe


def consumed(folder: Path) -> list[int]:
    """Every group of the standing commits, with repetitions."""
    history = read_history(folder / "commits.jsonl")
    return sorted(group for commit in history.commits for group in commit.groups)


def stands(folder: Path) -> list[tuple[int, int, bool]]:
    """Step, attempt and whether there is a state, of the commits that stand."""
    history = read_history(folder / "commits.jsonl")
    return [(one.step, one.attempt, one.state is not None) for one in history.commits]


def turns(server: ScriptedPolicyServer) -> int:
    """Turns that were asked for; reference logprobs come over the same endpoint."""
    asked = server.requests("asample")
    return sum(not request.body.get("prompt_logprobs") for request in asked)


def admitted(folder: Path, attempt: int) -> list[int]:
    return [
        line["group"]
        for line in read_records(folder / "groups.jsonl")
        if (line["state"], line["attempt"]) == ("admitted", attempt)
    ]


async def go_on(
    folder: Path, experiment: Experiment, observer: Observer = ignore, **more: Any
) -> RunFinished:
    return await resume(folder, experiment, observer=observer, stop=StopRequest(), **more)


async def broken_at(
    server: ScriptedPolicyServer, runs: Path, break_it: Callable[[], None], *overrides: str
) -> tuple[Path, Experiment]:
    """A run that failed as ``break_it`` planned."""
    declared, yaml = made(server, runs, *overrides)
    break_it()
    with pytest.raises(MtrlError):
        await train(declared, yaml, observer=ignore, stop=StopRequest())
    return folder_of(runs), declared


@pytest.mark.parametrize("lag", [0, 1, 2])
async def test_a_drained_run_has_a_state_at_its_last_commit_and_goes_on_there(
    tmp_path: Path, lag: int
) -> None:
    async with ScriptedPolicyServer(sampler=Player()) as server:
        options = ("train.steps=6", "train.checkpoint_every=4", f"train.max_policy_lag={lag}")
        declared, yaml = made(server, tmp_path, *options)
        stop = StopRequest()
        first = await train(declared, yaml, observer=stopping(stop, 2), stop=stop)
        assert first.status == "cancelled"
        folder = folder_of(tmp_path)
        before = stands(folder)
        drained = before[-1][0]
        assert drained < 6
        assert before[-1] == (drained, 1, True)
        sampled = turns(server)
        told: list[object] = []

        finished = await go_on(folder, declared, told.append)

    assert finished.status == "finished"
    assert finished.steps == 6
    (started,) = (event for event in told if isinstance(event, RunStarted))
    metrics = list(read_records(folder / "metrics.jsonl"))
    assert list(started.rewards) == [
        line["reward"] for line in metrics[:drained]
    ]  # a trend goes on
    assert stands(folder)[: drained + 1] == before  # nothing was voided
    assert stands(folder)[-1] == (6, 2, True)
    assert consumed(folder) == list(range(6 * PER_STEP))
    assert admitted(folder, 2) == list(range(drained * PER_STEP, 6 * PER_STEP))
    # 2 members of 3 turns: no group was sampled but those that were left.
    assert turns(server) - sampled == len(admitted(folder, 2)) * 2 * 3


async def test_a_drain_saves_a_state_also_where_none_is_saved_otherwise(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player()) as server:
        declared, yaml = made(server, tmp_path, "train.steps=4", "train.checkpoint_every=0")
        stop = StopRequest()
        first = await train(declared, yaml, observer=stopping(stop, 1), stop=stop)
        folder = folder_of(tmp_path)
        drained, attempt, state = stands(folder)[-1]
        assert (attempt, state) == (1, True)
        assert drained < 4
        assert [has for _, _, has in stands(folder)[:-1]] == [False] * drained
        assert first.resumable == Resumable(drained, drained)
        finished = await go_on(folder, declared)
    assert finished.steps == 4
    assert stands(folder)[-1] == (4, 2, False)  # the end of a run is no drain
    assert consumed(folder) == list(range(4 * PER_STEP))


@pytest.mark.parametrize("steps", [3, 4])
async def test_an_evaluation_that_a_stop_cut_off_is_made_at_the_resume(
    tmp_path: Path, steps: int
) -> None:
    """Its step is committed, so nothing else would ever repeat it. The drain commits one more."""
    options = (f"train.steps={steps}", "train.checkpoint_every=2", "eval.every=2", "eval.games=3",
               "eval.games_during=3")  # fmt: skip
    async with ScriptedPolicyServer(sampler=Player()) as server:
        declared, yaml = made(server, tmp_path, *options)
        stop = StopRequest()
        await train(declared, yaml, observer=stopping(stop, 2), stop=stop)
        folder = folder_of(tmp_path)
        assert stands(folder)[-1] == (3, 1, True)
        evaluations = folder / "evaluations"
        assert sorted(path.name for path in evaluations.iterdir()) == ["before.json"]
        finished = await go_on(folder, declared)
    assert finished.status == "finished"
    names = ["after.json", "before.json", "step-2.json"]
    assert sorted(path.name for path in evaluations.iterdir()) == names
    lines = [line for line in read_records(folder / "metrics.jsonl") if "eval/mean" in line]
    assert [(line["step"], line["attempt"]) for line in lines] == [(2, 2)]
    played = json.loads((evaluations / "step-2.json").read_text())
    assert played["policy"] == read_history(folder / "commits.jsonl").commits[2].policy


async def test_a_failed_run_goes_back_to_its_last_state_and_voids_what_came_after(
    tmp_path: Path,
) -> None:
    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        folder, declared = await broken_at(
            server,
            tmp_path,
            lambda: server.faults.add("optim_step", faults.drop_reply(), skip=3),
            "train.steps=5",
            "train.checkpoint_every=2",
        )
        assert stands(folder) == [(0, 1, False), (1, 1, False), (2, 1, True), (3, 1, False)]
        state = read_history(folder / "commits.jsonl").commits[2].state

        finished = await go_on(folder, declared)

        [loaded] = server.requests("load_weights")
        calls = [(call.kind, call.model) for call in server.applications()]
    assert loaded.body["path"] == state
    assert loaded.body["optimizer"] is True
    # A model of its own, loaded before anything else, published under a name of its own.
    second = calls.index(("load_weights", loaded.body["model_id"]))
    assert calls[second - 1][0] == "create_model"
    assert calls[second + 1][0] == "save_weights_for_sampler"
    assert all(model == loaded.body["model_id"] for _, model in calls[second:])
    assert finished.steps == 5
    attempts = [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert [made[:2] for made in stands(folder)] == attempts
    assert consumed(folder) == list(range(5 * PER_STEP))
    records = list(read_records(folder / "commits.jsonl"))
    assert [one for one in records if one["kind"] == "rollback"] == [
        {"kind": "rollback", "to": 2, "attempt": 2}
    ]
    files = {path.name for path in (folder / "trajectories").glob("step-*")}
    assert files == {f"step-{step:06d}.jsonl.gz" for step in range(1, 6)}
    assert [path.name for path in (folder / "trajectories" / "voided-by-a2").iterdir()] == [
        "step-000003.jsonl.gz"
    ]
    metrics = read_records(folder / "metrics.jsonl")
    assert [(line["step"], line["attempt"]) for line in metrics] == [
        (1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 2),
    ]  # fmt: skip
    assert finished.episodes == 5 * PER_STEP * 2


async def test_a_run_that_broke_before_its_first_state_begins_anew(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        folder, declared = await broken_at(
            server,
            tmp_path,
            lambda: server.faults.add("optim_step", faults.drop_reply(), skip=1),
            "train.steps=3",
            "train.checkpoint_every=2",
        )
        assert stands(folder) == [(0, 1, False), (1, 1, False)]
        await go_on(folder, declared)
        assert server.requests("load_weights") == []
        created = [call.body for call in server.applications() if call.kind == "create_model"]
    assert created[0]["lora_config"] == created[1]["lora_config"]  # the same seed
    assert stands(folder) == [(0, 2, False), (1, 2, False), (2, 2, True), (3, 2, True)]
    assert consumed(folder) == list(range(3 * PER_STEP))
    assert next(one["to"] for one in read_records(folder / "commits.jsonl") if "to" in one) == -1


async def test_two_resumes_at_once_cannot_both_win(tmp_path: Path) -> None:
    async with ScriptedPolicyServer(sampler=Player(), dedupes=False) as server:
        folder, declared = await broken_at(
            server,
            tmp_path,
            lambda: server.faults.add("optim_step", faults.drop_reply()),
            "train.steps=2",
        )
        both = await asyncio.gather(
            go_on(folder, declared), go_on(folder, declared), return_exceptions=True
        )
    won = [one for one in both if isinstance(one, RunFinished)]
    told = [one for one in both if isinstance(one, StillRunning)]
    assert len(won) == len(told) == 1
    assert "attempt 2" in str(told[0])
    assert f"mtrl cancel {folder.name}" in told[0].hint
    assert stands(folder)[-1] == (2, 2, False)
