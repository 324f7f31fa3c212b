"""``mtrl publish`` as a user types it, on the embedded server and on a scripted one."""

import hashlib
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.local.engine import Datum, gradient, load_base
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.processes import command, environment
from tests.cli.world import TINY, World
from tests.local.server_kit import sample, serving
from tests.training.runs import SMALL

BASE = Path(__file__).resolve().parents[2] / "mtrl_cli" / "assets" / "mtrl-tiny"


def published(world: World, *arguments: str) -> dict[str, Any]:
    done = world.mtrl("publish", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_manifest_says_where_a_policy_comes_from(trained: World) -> None:
    run = trained.run(trained.first)
    facts = published(trained, "last")
    last = trained.commits(trained.first)[-1]
    name = f"blackjack-{run.name[-4:]}-step-000002"
    assert (facts["name"], facts["run"], facts["step"]) == (name, run.name, 2)
    assert facts["uri"] == last["policy"] == trained.state(trained.first)["policy"]
    assert facts["initial"] == trained.commits(trained.first)[0]["policy"]
    assert facts["snapshot"]["name"] == f"{run.name}/a1/step-000002"
    assert facts["snapshot"]["verified"] is True
    model, kind, checkpoint = facts["uri"].removeprefix("tinker://").split("/", 2)
    file = trained.home / "store/models" / model / kind / (checkpoint.replace("/", "+") + ".npz")
    assert facts["snapshot"]["size"] == file.stat().st_size
    assert facts["snapshot"]["digest"].startswith("sha256:")
    assert facts["server"]["store"] == str(trained.home / "store")
    config = (run / "config.yaml").read_bytes()
    assert facts["experiment"]["config_sha256"] == hashlib.sha256(config).hexdigest()
    assert facts["experiment"]["task"] == "mtrl_cli.tasks.blackjack.task:Blackjack"
    folder = Path(trained.folder / facts["folder"])
    assert (folder / "config.yaml").read_bytes() == config
    assert json.loads((folder / "manifest.json").read_text())["uri"] == facts["uri"]
    assert sum(facts["data"]["groups"].values()) == 4
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert facts["data"]["episodes"] == 16 == sum(line["episodes"] for line in metrics)
    assert facts["data"]["sampled_tokens"] == sum(line["tokens_sampled"] for line in metrics)
    evaluation = facts["evaluation"]
    assert evaluation["after"]["policy"] == facts["uri"]
    assert evaluation["before"]["policy"] == facts["initial"]
    parity = [line["parity_max"] for line in metrics if "parity_max" in line]
    assert facts["parity"]["worst"]["parity_max"] == max(parity)
    assert facts["parity"]["last"]["parity_max"] == parity[-1]


def test_names_are_listed_played_and_never_given_twice(trained: World) -> None:
    first = published(trained, "last", "--step", "1", "--name", "first")
    assert first["uri"] == trained.commits(trained.first)[1]["policy"]
    again = trained.mtrl("publish", "last", "--name", "first")
    assert again.returncode == 2
    assert "the name 'first' is given already" in again.stderr
    listed = json.loads(trained.mtrl("publish", "--list", "--json").stdout)
    assert ("first", first["uri"]) in [(policy["name"], policy["uri"]) for policy in listed]
    assert "first " in trained.mtrl("publish", "--list").stdout

    played = trained.mtrl("rollout", "policy=first", "--groups", "1", "group.size=2")
    assert played.returncode == 0, played.stderr
    assert trained.state()["policy"] == first["uri"]  # of the rollout, which is now the latest
    [group] = (trained.run() / "groups.jsonl").read_text().splitlines()
    assert json.loads(group)["policy"] == first["uri"]
    dry = json.loads(trained.mtrl("rollout", "policy=first", "--dry-run", "--json").stdout)
    assert dry["policy"] == first["uri"]


@pytest.mark.long
def test_a_wrong_policy_leaves_no_run_behind(trained: World) -> None:
    published(trained, "last", "--name", "second")
    before = sorted(path.name for path in (trained.folder / "runs").iterdir())
    for command_of, asked, told in (
        (["rollout"], ["policy=secnd"], "did you mean policy=second?"),
        (["rollout"], ["policy=second", "server.base_model=x"], "server.base_model=mtrl-tiny"),
        (["eval"], ["policy=second", "server.store=/nowhere"], "write server.store="),
        (["rollout", "--dry-run"], ["policy=tinker://model_1/weights/x"], "a training state"),
        (["eval", "--dry-run"], ["policy=last@7"], "its commits are 0 to 2"),
    ):
        done = trained.mtrl(*command_of, *asked)
        assert done.returncode == 2, (command_of, asked, done.stderr)
        assert told in done.stderr
    assert sorted(path.name for path in (trained.folder / "runs").iterdir()) == before


@pytest.mark.long
def test_a_policy_that_is_gone_is_told_before_anything_is_sampled(trained: World) -> None:
    absent = "policy=tinker://model_0123456789ab/sampler_weights/x"
    done = trained.mtrl("rollout", absent, "--groups", "1")
    assert done.returncode == 1
    assert "is not on Tinker API at" in done.stderr
    assert (trained.run() / "groups.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "which run?"),
        (["nosuch"], 3, "no run 'nosuch'"),
        (["last", "--step", "9"], 2, "has no step 9: its commits are 0 to 2"),
        (["last", "--name", "../x"], 2, "cannot name a policy"),
        (["last", "--list"], 2, "--list stands alone"),
        (["last", "--export", "."], 2, "is not empty"),
        (["last", "--export", "/dev/null"], 2, "is not a folder"),
    ],
)
def test_what_publish_refuses(
    trained: World,
    arguments: list[str],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(trained.folder)
    done = CliRunner().invoke(app, ["publish", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert told in done.stderr


def test_a_run_of_another_kind_made_no_policy(
    trained: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.folder)
    other = trained.folder / "runs" / "20990101-000000-0000"
    other.mkdir()
    (other / "run.json").write_text('{"kind": "rollout", "status": "finished"}')
    done = CliRunner().invoke(app, ["publish", other.name])
    shutil.rmtree(other)
    assert done.exit_code == 2
    assert "of the kind 'rollout': it made no policy" in done.stderr


def test_exported_weights_are_the_stores_and_give_the_samplers_logprobs(trained: World) -> None:
    facts = published(trained, "last", "--name", "taken", "--export", "out")
    out = trained.folder / "out"
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors",
        "config.json",
        "manifest.json",
    }
    assert json.loads((out / "manifest.json").read_text())["uri"] == facts["uri"]
    weights = load_file(out / "model.safetensors")
    model, kind, name = facts["uri"].removeprefix("tinker://").split("/", 2)
    store = trained.home / "store"
    with np.load(store / "models" / model / kind / f"{name.replace('/', '+')}.npz") as kept:
        for key in weights:
            assert weights[key].tobytes() == kept[key].tobytes()
    tokens = [7, 21, 300, 4, 99, 12, 5, 480]
    with serving(store, BASE) as client:
        body = {"session_id": client.session(), "model_path": facts["uri"]}
        session = client.call("create_sampling_session", body)["sampling_session_id"]
        asked = sample(session, tokens, 1, prompt_logprobs=True)
        seen = client.done("asample", asked)["prompt_logprobs"][1:]
    shape, _ = load_base(BASE)
    ids = np.array(tokens, np.int32)
    [own] = gradient.logprobs(shape, weights, [Datum(ids[:-1], {"target_tokens": ids[1:]})])
    assert own.tolist() == pytest.approx(seen, abs=1e-5)

    later = trained.mtrl("publish", "taken", "--export", "later")
    assert later.returncode == 0, later.stderr
    assert (trained.folder / "later" / "model.safetensors").read_bytes() == (
        out / "model.safetensors"
    ).read_bytes()
    refused = trained.mtrl("publish", "taken", "--export", "out")
    assert (refused.returncode, "is not empty" in refused.stderr) == (2, True)
    assert not list(trained.folder.glob(".mtrl-export-*"))


@pytest.mark.long
def test_an_adapter_is_exported_as_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.mtrl("train", *TINY, "train.lora_rank=4", "eval.games=0").returncode == 0
    published(world, "last", "--name", "adapter", "--export", "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 32.0)
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    shape, base = load_base(BASE)
    rows, columns = base["layer0.qkv"].shape
    assert adapter["base_model.model.layer0.qkv.lora_A.weight"].shape == (4, rows)
    assert adapter["base_model.model.layer0.qkv.lora_B.weight"].shape == (columns, 4)
    assert np.abs(adapter["base_model.model.layer0.qkv.lora_B.weight"]).max() > 0
    assert f"layer{shape.layers - 1}.qkv" in base


@pytest.mark.long
def test_a_run_that_goes_on_is_published_from_its_commits(tmp_path: Path) -> None:
    world = World(tmp_path)
    running = subprocess.Popen(
        command("train", "train.steps=500", "group.per_step=1", "group.size=4", "eval.games=0"),
        cwd=tmp_path,
        env=environment(MTRL_HOME=str(world.home)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "runs" / "latest").exists() or len(world.commits()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        facts = published(world, "last", "--step", "1")
        assert running.poll() is None
        assert facts["uri"] == world.commits()[1]["policy"]
        assert facts["snapshot"]["verified"] is True
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert world.state()["status"] == "cancelled"


KEY = "key-of-the-server"


def scripted(server: ScriptedPolicyServer, *overrides: str) -> list[str]:
    key = "server.api_key=${oc.env:TINKER_API_KEY}"
    return [*SMALL, f'server.base_url="{server.url}"', "train.steps=1", key, *overrides]


@pytest.mark.long
def test_a_server_without_a_list_is_said_to_be_unverified(tmp_path: Path) -> None:
    world = World(tmp_path)
    with ScriptedPolicyServer(api_key=KEY) as server:
        assert world.mtrl("train", *scripted(server), TINKER_API_KEY=KEY).returncode == 0
        server.faults.add("training_runs/model_1/checkpoints", faults.status(404), times=9)
        done = world.mtrl("publish", "last", "--name", "plain", TINKER_API_KEY=KEY)
        assert done.returncode == 0, done.stderr
        assert "not verified: this server has no list" in done.stdout
        export = world.mtrl("publish", "last", "--export", "out", TINKER_API_KEY=KEY)
        assert export.returncode == 1
    assert "does not hand out" in export.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    manifest = json.loads((tmp_path / "runs/policies/plain/manifest.json").read_text())
    assert manifest["snapshot"]["verified"] is False
    for file in (tmp_path / "runs/policies/plain").iterdir():
        assert KEY not in file.read_text()
    rows = world.mtrl("publish", "--list").stdout.splitlines()
    assert rows[1].split()[-2] == "no"


@pytest.mark.parametrize("snapshots", ["live", pytest.param("newest_only", marks=pytest.mark.long)])
def test_snapshots_that_do_not_last_get_no_name(
    tmp_path: Path, snapshots: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    with ScriptedPolicyServer(snapshots=snapshots) as server:
        train = scripted(server, f"server.snapshots={snapshots}", "train.checkpoint_every=1")
        assert world.mtrl("train", *train, TINKER_API_KEY=KEY).returncode == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    done = CliRunner().invoke(app, ["publish", "last"])
    assert done.exit_code == 2
    assert f"server.snapshots {snapshots}" in done.stderr
    assert f"its training state is {world.commits()[-1]['state']}" in done.stderr
    assert not (tmp_path / "runs" / "policies").exists()
