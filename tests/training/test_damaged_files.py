"""Resuming a run whose files were damaged: nothing is trained that cannot be recorded at the end,
and what nothing rests on does not stop it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import Notice, RunFinished
from mtrl_cli.training.run import resume
from tests.training.runs import experiment, train_on
from tests.training.test_end_to_end import Player


@pytest.fixture
async def server() -> AsyncIterator[ScriptedPolicyServer]:
    async with ScriptedPolicyServer(sampler=Player()) as server:
        yield server


async def finished(server: ScriptedPolicyServer, runs: Path) -> Path:
    """A run of two steps, the last with a training state, and two games before and after."""
    asked = ("train.steps=2", "train.checkpoint_every=2", "eval.games=2")
    return Path((await train_on(server.url, runs, *asked)).folder)


async def again(
    server: ScriptedPolicyServer, folder: Path, observer: Observer = ignore
) -> RunFinished:
    where = (f'server.base_url="{server.url}"', f'run.dir="{folder.parent}"')
    asked = ("train.steps=3", "train.checkpoint_every=2", "eval.games=2")
    made, _ = experiment(*where, *asked)
    return await resume(folder, made, observer=observer, stop=StopRequest())


@pytest.mark.parametrize("line", ["garbage", "[1]", '{"step":1,"attempt":1,"episodes":"x"}'])
async def test_damaged_metrics_are_told_and_stop_nothing(
    server: ScriptedPolicyServer, tmp_path: Path, line: str
) -> None:
    folder = await finished(server, tmp_path)
    metrics = folder / "metrics.jsonl"
    metrics.write_text("\n".join([line, *metrics.read_text().splitlines()[1:]]) + "\n")
    told: list[str] = []

    def observe(event: object) -> None:
        if isinstance(event, Notice):
            told.append(event.text)

    ended = await again(server, folder, observe)
    assert (ended.status, ended.steps) == ("finished", 3)
    assert ended.episodes == 2  # of the one step that this attempt has made
    [text] = [text for text in told if "metrics" in text]
    assert text.startswith(f"{metrics} is damaged: ")


@pytest.mark.parametrize("text", ["{", "[]", '{"games":[[1,2,3,4,5,6,7,8]]}'])
async def test_a_damaged_evaluation_is_refused_before_anything_is_trained(
    server: ScriptedPolicyServer, tmp_path: Path, text: str
) -> None:
    folder = await finished(server, tmp_path)
    before = folder / "evaluations" / "before.json"
    before.write_text(text)
    left, asked = (folder / "run.json").read_bytes(), len(server.requests())
    with pytest.raises(MtrlError, match=r"before.json is damaged: .* remove it and go without"):
        await again(server, folder)
    assert (folder / "run.json").read_bytes() == left
    assert len(server.requests()) == asked
    before.unlink()
    ended = await again(server, folder)
    assert ended.status == "finished"
    assert ended.after is not None
    assert ended.after.versus is None


@pytest.mark.parametrize("key", ["evaluation", "borrows", "attempt"])
async def test_a_record_that_lacks_a_part_is_refused(
    server: ScriptedPolicyServer, tmp_path: Path, key: str
) -> None:
    folder = await finished(server, tmp_path)
    record = json.loads((folder / "run.json").read_text())
    del record[key]
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(MtrlError, match=f"run.json is damaged: it lacks {key}$"):
        await again(server, folder)
    assert json.loads((folder / "run.json").read_text()) == record
    last = read_history(folder / "commits.jsonl").last
    assert last is not None
    assert (last.step, last.attempt) == (2, 1)


async def test_a_folder_in_the_place_of_latest_is_refused_before_anything_is_written(
    server: ScriptedPolicyServer, tmp_path: Path
) -> None:
    folder = await finished(server, tmp_path)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    left = (folder / "run.json").read_bytes()
    with pytest.raises(MtrlError, match=r"latest is a folder, where a link .*: move it$"):
        await again(server, folder)
    with pytest.raises(MtrlError, match="latest is a folder"):
        await finished(server, tmp_path)
    assert (folder / "run.json").read_bytes() == left
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, "latest"])
