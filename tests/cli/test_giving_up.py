"""``mtrl store --give-up`` as a user types it: what goes, what stays and why, what it refuses."""

import errno
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.config.compose import compose
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.policies import write_policy
from mtrl_cli.runs.processes import process_facts
from tests.cli.processes import command, environment
from tests.cli.test_store import filled, held
from tests.cli.world import World
from tests.runs.test_needed import EVERY, RUN, VOID, a_run, policy

ALIVE = process_facts(os.getpid())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cancelled run in ``runs``, its snapshots in ``store``."""
    a_run(tmp_path / "runs", "cancelled")
    filled(tmp_path / "store", EVERY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    return tmp_path


def asked(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stderr


def give_up(*more: str, run: str = RUN, store: str = "store") -> tuple[int, str]:
    return asked("store", "--store", store, "--give-up", run, "--yes", *more)


def state(run: Path, **facts: Any) -> None:
    told = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(told | facts))


@pytest.mark.parametrize("spelt", ["{}/runs/{}", "runs/../runs/{1}", "./runs/latest"])
def test_all_of_it_goes_however_its_folder_is_written(here: Path, spelt: str) -> None:
    (here / "runs" / "latest").symlink_to(RUN)
    code, told = give_up(run=spelt.format(here, RUN))
    assert (code, "removed: 12 snapshots, " in told) == (0, True), told
    assert held(here / "store") == set()


def test_folders_may_be_named_twice_or_not_at_all(here: Path) -> None:
    (here / "other").mkdir()
    code, told = give_up("--runs-dir", "./runs", "--runs-dir", str(here / "runs"))
    assert (code, "removed: 12 snapshots, " in told) == (0, True), told
    filled(here / "more", EVERY)
    code, told = give_up("--runs-dir", "other", run=f"runs/{RUN}", store="more")
    assert (code, "removed: 12 snapshots, " in told) == (0, True), told


def test_what_an_evaluation_has_told_that_it_plays_stays_and_the_rest_goes(here: Path) -> None:
    facts: dict[str, Any] = {"id": "b", "kind": "eval", "policy": None, **ALIVE}
    a_run(here / "runs", "running", "playing", plays=[policy(1), policy(6, 2)], **facts)
    code, told = give_up()
    assert (code, "removed: 10 snapshots, " in told) == (0, True), told
    assert held(here / "store") == {policy(1), policy(6, 2)}
    (code, told) = give_up(run=str(here / "runs" / RUN))
    assert (code, told) == (0, "nothing goes\n")


def test_what_must_wait_for_a_rollout_is_told_and_goes_later(here: Path) -> None:
    playing = a_run(here / "runs", "running", "playing", id="b", kind="rollout", step=0, **ALIVE)
    (playing / "commits.jsonl").unlink()
    waits = (
        f"10 snapshots of {RUN} must stay, as what goes on here may play them and has not told "
        "what it plays: rollout playing; type the same again when that has ended\n"
    )
    code, told = give_up()
    assert (code, told.splitlines(keepends=True)[0]) == (1, waits)
    assert told.splitlines()[-1].startswith("removed: 2 snapshots, ")
    assert held(here / "store") == set(EVERY) - VOID
    assert give_up() == (1, waits)
    state(playing, status="finished", pid_start=-1)
    code, told = give_up()
    assert (code, "removed: 10 snapshots, " in told) == (0, True), told
    assert held(here / "store") == set()


def test_why_nothing_goes_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, none = here / "runs" / RUN, f"{here}/empty holds nothing of {RUN}"
    filled(here / "empty", [])
    given = f"error: --give-up {RUN}: "
    hosted = "server=tinker", "server.base_model=m", "server.tokenizer=t"
    for settings, why in (
        (
            ("server.store=/else/where",),
            ": its config.yaml names another store: --store /else/where",
        ),
        ((f"server.store={here}/empty",), "; --store DIR names another store"),
        (
            (*hosted, "server.base_url=https://tinker.example"),
            ": its snapshots are on its server (tinker at https://tinker.example), and are removed "
            "there",
        ),
        (
            ("server.base_url=http://127.0.0.1:9",),
            ": its snapshots are on its server (local at http://127.0.0.1:9), and are removed "
            "there; if that is mtrl serve, --store DIR names its store",
        ),
    ):
        (run / "config.yaml").write_text(compose(None, settings).yaml)
        assert give_up(store="empty") == (2, f"{given}{none}{why}\n")
    filled(here / "named", [policy(1), policy(1, 3)])
    facts = {"format": 1, "uri": policy(1), "policy_step": 1, "time": 1.0, "server": {}}
    write_policy(here / "runs", "mine", facts, "")
    told = (
        f"{given}{here}/named holds 2 snapshots of {RUN}, and none goes: 1 named, evaluated or "
        "played by another run and 1 of attempts that its folder does not tell of "
        "(--prune unknown)\n"
    )
    assert give_up(store="named") == (2, told)
    monkeypatch.setattr("mtrl_cli.runs.liveness._CONFIRM_SECONDS", 0.0)
    state(run, status="running", boot="another", host="far")
    for file in ("run.json", "heartbeat"):
        (run / file).touch()
        os.utime(run / file, (1.0, 1.0))
    code, said = give_up()
    assert (code, said.splitlines()[0]) == (
        1,
        f"error: {RUN} may live on another machine (far), where its process cannot be seen from "
        "here",
    )
    assert said.splitlines()[1] == f" hint: settle it first: mtrl cancel {RUN}"
    assert held(here / "store") == set(EVERY)
    assert "given_up" not in json.loads((run / "run.json").read_text())


def test_on_a_full_disk_it_says_what_makes_room(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("mtrl_cli.runs.files.os.fsync", full)
        code, told = give_up()
    run = here / "runs" / RUN
    assert (code, f"{run.name}/run.json: No space left on device: nothing was" in told) == (1, True)
    assert told.splitlines()[-1].startswith(" hint: make a little room first; mtrl store --prune")
    assert not (run / "run.json.tmp").exists()
    assert "given_up" not in json.loads((run / "run.json").read_text())
    assert held(here / "store") == set(EVERY)


@pytest.mark.parametrize("mark", [1e300, 1e18, float("nan"), True, "yesterday", [1.0]])
def test_a_damaged_mark_gives_nothing_up_and_is_told(here: Path, mark: object) -> None:
    state(here / "runs" / RUN, given_up=mark)
    damaged = "run.json is damaged: given_up is not a number"
    code, told = asked("store", "--store", "store", "--prune", "void", "--prune", "between", "-y")
    assert (code, told) == (0, "nothing goes\n")
    for words in (("train", "--resume", RUN), ("show", RUN)):
        code, told = asked(*words)
        assert (code, damaged in told) == (1, True), told
    code, told = give_up()
    assert (code, damaged in told) == (1, True), told
    found = CliRunner().invoke(app, ["verify", RUN])
    assert (found.exit_code, "given_up is not a number" in found.output) == (1, True)
    assert held(here / "store") == set(EVERY)


def test_a_policy_of_it_is_refused_before_anything_is_made(here: Path) -> None:
    assert give_up()[0] == 0
    for words in (("eval",), ("eval", "--dry-run"), ("rollout", "--dry-run")):
        code, told = asked(*words, f"policy={RUN}@2", f"server.store={here}/store")
        assert code == 1, told
        assert told.startswith(f"error: policy={RUN}@2: the snapshots of {RUN} were given up on ")
    assert sorted(entry.name for entry in (here / "runs").iterdir()) == [RUN]


@pytest.mark.long
def test_a_publication_that_waited_for_it_says_why_there_is_nothing_to_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.mtrl("train", "group.per_step=2", "group.size=4", "eval.games=0", "train.steps=1")
    assert done.returncode == 0, done.stderr
    run, environ = world.run(), environment(MTRL_HOME=str(world.home))
    with locked(run):
        waits = subprocess.Popen(
            command("publish", "last"), cwd=tmp_path, env=environ, stdout=-3, stderr=-1, text=True
        )
        lock, files = run / "control" / "lock", Path(f"/proc/{waits.pid}/fd")
        while waits.poll() is None and lock not in {file.resolve() for file in files.iterdir()}:
            time.sleep(0.05)
        state(run, given_up=1.0)
        shutil.rmtree(world.home / "store" / "models")
    told = waits.communicate(timeout=60)[1]
    assert (waits.returncode, "were given up on 1970-01-0" in told) == (1, True), told
