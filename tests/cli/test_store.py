"""``mtrl store`` as a user types it, on real stores."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.local.store import Store, parse_uri
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.processes import process_facts
from tests.cli.processes import command, environment, mtrl, on_terminal
from tests.cli.world import World
from tests.runs.test_needed import ENDS, EVERY, RUN, VOID, a_run

FOREIGN = "tinker://model_0123456789ab/weights/of/an-sdk"


def filled(root: Path, uris: list[str]) -> None:
    """A store with small checkpoints under these URIs."""
    store = Store(root)
    for uri in uris:
        ref = parse_uri(uri)
        if not (root / "models" / ref.model_id).exists():
            store.new_model(ref.model_id, {"base_model": "mtrl-tiny"})
        store.save(ref, {"w": np.zeros(4, np.float32)}, {})
    store.close()


def held(root: Path) -> set[str]:
    store = Store(root)
    try:
        return {item.ref.uri for model in store.models() for item in store.checkpoints(model)}
    finally:
        store.close()


def test_it_lists_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(tmp_path / "runs")
    filled(tmp_path / "store", [*EVERY, FOREIGN])
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(app, ["store", "--store", "store", "--prune", "between"])
    assert listed.exit_code == 2
    assert "nothing was removed: add --yes" in listed.stderr
    told = listed.stdout
    assert told.splitlines()[0].startswith(f"{tmp_path / 'store'}: 13 snapshots, ")
    assert RUN in told
    assert " may go: mtrl store --prune void --store store\n" in told
    assert "(--runs-dir)\n  none is 30 days old yet\n" in told
    assert "runs here keep weights elsewhere too: mtrl store --store /else/where" in told
    assert held(tmp_path / "store") == {*EVERY, FOREIGN}


def test_a_run_is_given_up_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others need stays; the run is not resumed any more, and says why."""
    a_run(tmp_path / "runs", "cancelled")
    played = a_run(tmp_path / "runs", name="played", id="b", kind="eval", step=0, policy=EVERY[1])
    (played / "commits.jsonl").unlink()
    elsewhere = "tinker://model_0123456789ab/weights/20261129-122135-beef/a1/step-000002"
    filled(tmp_path / "store", [*EVERY, FOREIGN, elsewhere])
    filled(tmp_path / "other", [FOREIGN])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")

    def asked(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments))
        return done.exit_code, done.output

    code, told = asked("store", "--store", "other", "--give-up", RUN, "--yes")
    wants = f"{tmp_path}/other holds nothing of {RUN}; --store DIR names another store\n"
    assert (code, wants in told) == (2, True)
    code, told = asked("store", "--store", "store", "--give-up", RUN)
    assert (code, "nothing was removed: add --yes" in told) == (2, True)
    assert "a7aa (cancelled): it can be neither resumed nor evaluated again" in told
    assert held(tmp_path / "store") == {*EVERY, FOREIGN, elsewhere}
    assert asked("train", "--resume", RUN, "--dry-run")[1].find("given up") == -1

    code, told = asked("store", "--store", "store", "--give-up", RUN, "--yes")
    assert (code, "removed: 11 snapshots, " in told) == (0, True)
    assert held(tmp_path / "store") == {EVERY[1], FOREIGN, elsewhere}
    code, told = asked("train", "--resume", RUN)
    assert (code, told[:47]) == (1, "error: the snapshots of 20261129-122135-a7aa we")
    assert "(mtrl store --give-up): there is nothing to begin from" in told
    assert "GIVEN UP" in asked("show", RUN)[1]
    assert asked("store", "--store", "store", "--give-up", RUN, "--yes") == (0, "nothing goes\n")


def test_a_removal_that_was_cut_off_is_finished_and_a_living_run_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "runs", "failed", given_up=1.0)  # killed before anything was removed
    filled(tmp_path / "store", EVERY)
    monkeypatch.chdir(tmp_path)
    again = ["store", "--store", "store", "--give-up", RUN, "--yes"]
    told = json.loads((run / "run.json").read_text())
    alive = {**told, "status": "running", **process_facts(os.getpid())}
    (run / "run.json").write_text(json.dumps(alive))
    done = CliRunner().invoke(app, again)
    assert (done.exit_code, "is still running" in done.stderr) == (4, True)
    assert held(tmp_path / "store") == set(EVERY)
    (run / "run.json").write_text(json.dumps(told))
    assert CliRunner().invoke(app, again).exit_code == 0
    assert held(tmp_path / "store") == set()
    assert json.loads((run / "run.json").read_text())["given_up"] == 1.0


@pytest.mark.long
def test_what_was_given_up_is_told_by_every_command_that_would_need_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    small = ("group.per_step=2", "group.size=4", "eval.games=8")
    done = world.mtrl("train", *small, "train.steps=2", "train.checkpoint_every=1")
    assert done.returncode == 0, done.stderr
    assert world.mtrl("publish", "last", "--step", "1", "--name", "mine").returncode == 0
    given = world.mtrl("store", "--give-up", "last", "--yes")
    assert given.returncode == 0, given.stderr
    assert "removed: " in given.stderr
    assert "GIVEN UP" in world.mtrl("show", "last").stdout
    asked = (("train", "--resume", "last", "train.steps=3"), ("publish", "last", "--name", "its"))
    for words in (("eval", "policy=last@2", *small), *asked):
        lost = world.mtrl(*words)
        assert (lost.returncode, "given up on" in lost.stderr) == (1, True), lost.stderr
    played = world.mtrl("eval", "policy=mine", *small)
    assert played.returncode == 0, played.stderr


@pytest.mark.long
def test_it_removes_what_was_asked_for(tmp_path: Path) -> None:
    a_run(tmp_path / "runs")
    filled(tmp_path / "store", [*EVERY, FOREIGN])
    asked = ("--prune", "void", "--prune", "between", "--prune", "unknown", "--yes", "--json")
    done = mtrl("store", "--store", "store", *asked, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1][:21]) == (0, "removed: 9 snapshots,")
    facts = json.loads(done.stdout)
    assert {one["uri"] for one in facts["snapshots"] if not one["goes"]} == {*ENDS, FOREIGN}
    assert held(tmp_path / "store") == {*ENDS, FOREIGN}


@pytest.mark.long
@pytest.mark.parametrize(("key", "told"), [("n", ""), ("y", "removed: "), ("\x03", "nothing was")])
def test_on_a_terminal_it_asks(tmp_path: Path, key: str, told: str) -> None:
    a_run(tmp_path / "runs")
    filled(tmp_path / "store", EVERY)
    asked = command("store", "--store", "store", "--prune", "void")
    typed = [(0.5, f"{key}\r".encode())]
    code, screen = on_terminal(asked, cwd=tmp_path, environ=environment(), keys=typed)
    assert code == (130 if key == "\x03" else 0)
    assert "remove them for good? [y/N] " in screen
    assert told in screen.splitlines()[-1]
    assert held(tmp_path / "store") == set(EVERY) - (VOID if key == "y" else set())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--store", "nowhere"), "error: --store: "),
        (("--prune", "all"), "error: --prune all: write one of void, between, unknown\n"),
        (("--runs-dir", "nowhere"), "error: --runs-dir: there is no folder 'nowhere'\n"),
    ],
)
@pytest.mark.long
def test_what_it_refuses(tmp_path: Path, given: tuple[str, str], told: str) -> None:
    done = mtrl("store", *given, cwd=tmp_path, MTRL_HOME=str(tmp_path))
    assert (done.returncode, done.stderr[: len(told)]) == (2, told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_two_at_once_remove_each_file_once_and_an_old_model_with_its_last(tmp_path: Path) -> None:
    runs, root = tmp_path / "runs", tmp_path / "store"
    a_run(runs)
    many = [f"tinker://model_{n:012x}/weights/{RUN}/a7/step-{n:06d}" for n in range(200)]
    filled(root, [*EVERY, *many])
    for path in root.glob("models/*/weights/*+a7+*.npz"):
        os.utime(path, (1.0, 1.0))
    old = root / "models" / "model_000000000009"
    torn = old / "weights" / ".0123456789abcdef.tmp"
    torn.write_bytes(b"half")
    for path in (old / "model.json", torn):
        os.utime(path, (1.0, 1.0))
    kinds = ("--prune", "void", "--prune", "unknown")
    asked = command("store", "--store", "store", *kinds, "--yes")
    both = [
        subprocess.Popen(asked, cwd=tmp_path, env=environment(), stdout=-1, stderr=-1, text=True)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=60)[1].splitlines()[-1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    counts = [0 if "nothing goes" in line else int(line.split()[1]) for line in told]
    assert sum(counts) == len(many) + len(VOID)
    assert not torn.exists()
    assert not old.exists()
    assert held(root) == set(EVERY) - VOID
    assert (root / "models" / "model_000000000008").exists()  # its client may have just begun


def test_nothing_outside_the_store_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path / "runs")
    filled(tmp_path / "store", EVERY)
    models, outside = tmp_path / "store" / "models", tmp_path / "outside"
    for name in ("weights", "sub", "model_bbbbbbbbbbbb/weights", "0123456789ab"):
        (outside / name).mkdir(parents=True)
    kept = ["weights/mine.npz", "sub/.0123456789abcdef.tmp", "model_bbbbbbbbbbbb/weights/its.npz"]
    kept += ["model.json", "0123456789ab/one.npz", "0123456789ab.lock"]
    for place in kept:
        (outside / place).write_text("precious")
        os.utime(outside / place, (1.0, 1.0))
    (models / "elsewhere").symlink_to(outside)
    (models / "model_bbbbbbbbbbbb").symlink_to(outside / "model_bbbbbbbbbbbb")
    (models / "model_aaaaaaaaaaaa").mkdir()
    (models / "model_aaaaaaaaaaaa" / "model.json").symlink_to(outside / "model.json")
    (models / "model_aaaaaaaaaaaa" / "weights").symlink_to(outside / "weights")
    (models / "model_cccccccccccc").mkdir()
    (models / "model_cccccccccccc" / "weights").write_text("a file where a folder belongs")
    shutil.rmtree(tmp_path / "store" / "ephemeral")
    (tmp_path / "store" / "ephemeral").symlink_to(outside)
    monkeypatch.chdir(tmp_path)
    kinds = ("--prune", "void", "--prune", "between", "--prune", "unknown", "--days", "1", "--yes")
    done = CliRunner().invoke(app, ["store", "--store", "store", *kinds])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "left alone: models/elsewhere is a symbolic link",
        "left alone: models/model_bbbbbbbbbbbb is a symbolic link",
        "left alone: models/model_aaaaaaaaaaaa/weights is a symbolic link",
        "left alone: models/model_cccccccccccc/weights is not a folder",
    ]
    assert "removed: 9 snapshots, " in done.stderr
    assert {place for place in kept if (outside / place).exists()} == set(kept)
    assert (models / "model_aaaaaaaaaaaa" / "model.json").is_symlink()
    shutil.move(models, outside / "models")
    models.symlink_to(outside / "models")
    done = CliRunner().invoke(app, ["store", "--store", "store"])
    assert (done.exit_code, "models is a symbolic link" in done.stderr) == (2, True)


@pytest.mark.long
def test_ctrl_c_while_it_waits_for_a_run_removes_nothing(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs")
    filled(tmp_path / "store", EVERY)
    asked = command("store", "--store", "store", "--prune", "void", "--yes")
    with locked(run):
        waits = subprocess.Popen(
            asked, cwd=tmp_path, env=environment(), stdout=-3, stderr=-1, text=True
        )
        assert waits.stderr
        assert waits.stderr.readline().startswith("to be removed: 2 snapshots, ")
        waits.send_signal(signal.SIGINT)
        told = waits.communicate(timeout=60)[1]
    assert (waits.returncode, told.strip()) == (130, "nothing was removed")
    assert held(tmp_path / "store") == set(EVERY)


def arrays(world: World, uri: str) -> dict[str, Any]:
    store = Store(world.home / "store")
    try:
        return store.load(parse_uri(uri))[0]
    finally:
        store.close()


@pytest.mark.long
def test_after_pruning_a_run_goes_on_bit_for_bit_and_its_names_are_played(tmp_path: Path) -> None:
    """Two copies of one finished run are resumed; of one the store was pruned before, and is
    pruned all the while."""
    pruned, copy = World(tmp_path / "pruned"), World(tmp_path / "copy")
    pruned.folder.mkdir()
    small = ("group.per_step=2", "group.size=4", "eval.games=8")
    done = pruned.mtrl("train", *small, "train.steps=4", "train.checkpoint_every=1")
    assert done.returncode == 0, done.stderr
    named = pruned.mtrl("publish", "last", "--step", "2", "--name", "mine")
    assert named.returncode == 0, named.stderr
    shutil.copytree(pruned.folder, copy.folder, symlinks=True)
    prune = ("store", "--prune", "void", "--prune", "between", "--prune", "unknown", "--yes")
    assert pruned.mtrl(*prune).returncode == 0
    commits = pruned.commits()
    gone = {commits[step][what] for step in (1, 3) for what in ("policy", "state")}
    assert held(copy.home / "store") - held(pruned.home / "store") == gone

    # An evaluation that would have been due at a step which is gone is told, not failed.
    more = ("train", "--resume", "last", "--force", "train.steps=6", "eval.every=3")
    assert copy.mtrl(*more).returncode == 0
    environ = environment(MTRL_HOME=str(pruned.home))
    run = subprocess.Popen(command(*more), cwd=pruned.folder, env=environ, stdout=-3, stderr=-3)
    while run.poll() is None:
        cleared = pruned.mtrl(*prune)
        assert cleared.returncode == 0, cleared.stderr
    assert run.returncode == 0
    mine, theirs = (arrays(world, world.commits()[-1]["state"]) for world in (pruned, copy))
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)

    played = pruned.mtrl("eval", "policy=mine", *small)
    assert played.returncode == 0, played.stderr
    lost = pruned.mtrl("eval", "policy=last@1", *small)
    assert (lost.returncode, "it was deleted" in lost.stderr) == (1, True)
