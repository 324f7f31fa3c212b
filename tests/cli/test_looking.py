"""`mtrl show`, `watch` and `trajectory` on the files of a real run."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from mtrl_cli.display.text import run_tail
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.runs.trajectories import read_trajectories, sealed
from tests.cli.processes import command, environment, mtrl, on_terminal
from tests.cli.world import World


def test_show_says_what_the_run_said_at_its_end(trained: World) -> None:
    done = trained.mtrl("show", trained.first)
    assert done.returncode == 0, done.stderr
    for line in trained.told.splitlines():
        if line.startswith(("reward ", "paired ", "episodes ", "groups ", "audit ", "policy ")):
            # Which tokens its evaluations took, only the run itself knows.
            assert re.sub(r" \(.* with evaluations\)$", "", line) in done.stdout
    assert f"publish    mtrl publish {run_tail(trained.first)} --name NAME" in done.stdout
    assert "training calls: done " in done.stdout


def test_the_command_that_plays_a_policy_finds_it(trained: World) -> None:
    [line] = [one for one in trained.told.splitlines() if one.startswith("play it")]
    program, *arguments = shlex.split(line.removeprefix("play it"))
    assert program == "mtrl"
    planned = trained.mtrl(*arguments, "--dry-run", "--json")
    assert json.loads(planned.stdout)["policy"] == trained.commits(trained.first)[-1]["policy"]


def test_show_in_json_agrees_with_the_files(trained: World) -> None:
    facts = json.loads(trained.mtrl("show", trained.first, "--json").stdout)
    commits = trained.commits(trained.first)
    assert [one["step"] for one in facts["commits"]] == [one["step"] for one in commits]
    assert facts["policy"] == commits[-1]["policy"]
    lines = (trained.run(trained.first) / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    assert facts["rewards"] == [one["reward"] for one in metrics if "reward" in one]
    assert facts["parity"]["max"] == max(one.get("parity_max", 0.0) for one in metrics)
    assert (facts["status"], facts["unknown_calls"], facts["quarantined"]) == ("finished", [], [])
    assert facts["resumable"] is None


def test_show_tells_what_a_dead_run_left(trained: World, tmp_path: Path) -> None:
    """A copy of the run whose process died within a step, after its first commits."""
    run = shutil.copytree(trained.run(trained.first), tmp_path / "runs" / trained.first)
    state = json.loads((run / "run.json").read_text())
    state.update(status="running", ended=None, pid=2**22 - 1, evaluation={})
    state["borrows"]["quarantined"] = ["sandbox sb-1: e2b sandbox kill sb-1"]
    (run / "run.json").write_text(json.dumps(state))
    with (run / "ledger.jsonl").open("a") as ledger:
        intent = {"entry": "call", "key": "a1/99", "state": "intent", "time": 1.0}
        ledger.write(json.dumps({**intent, "kind": "optim_step"}) + "\n")
    done = mtrl("show", "last", cwd=tmp_path)
    assert f"{trained.first}  train" in done.stdout
    assert "  lost, begun" in done.stdout
    assert "UNKNOWN    a1/99: it may have been executed; it is not sent again" in done.stdout
    assert f"mtrl cancel {run_tail(trained.first)}" in done.stdout
    assert f"mtrl train --resume {run_tail(trained.first)}" in done.stdout
    assert "QUARANTINE 1 could not be returned" in done.stdout
    facts = json.loads(mtrl("show", "last", "--json", cwd=tmp_path).stdout)
    assert facts["unknown_calls"] == ["a1/99"]
    assert facts["resumable"]["committed"] == trained.commits(trained.first)[-1]["step"]


@pytest.mark.parametrize("name", ["show", "watch", "trajectory"])
def test_no_such_run(tmp_path: Path, name: str) -> None:
    done = mtrl(name, "nothing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no run 'nothing'" in done.stderr


def test_trajectories_are_listed_by_group(trained: World) -> None:
    out = trained.mtrl("trajectory", trained.first).stdout
    head, *rows = [line.split() for line in out.splitlines()]
    assert head[:3] == ["group", "step", "task"]
    consumed = [group for one in trained.commits(trained.first) for group in one["groups"]]
    assert sorted(row[0] for row in rows) == sorted(consumed)


def test_a_trajectory_turn_by_turn(trained: World) -> None:
    file = trained.run(trained.first) / "trajectories" / "step-000001.jsonl.gz"
    record = next(read_trajectories(file))
    which = f"{record['group']}/{record['member']}"
    done = trained.mtrl("trajectory", trained.first, which, "--tokens")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert f"stop {record['stop']}; reward {record['reward']:.3f}" in done.stdout
    for turn in record["turns"]:
        assert all(call["answer"] in done.stdout for call in turn["calls"])
    rows = done.stdout[done.stdout.index(" place ") :].splitlines()[1:]
    assert [int(row.split()[1]) for row in rows] == record["tokens"]
    sampled = [row.split() for row in rows if " sampled " in row]
    assert [float(row[2]) for row in sampled] == pytest.approx(record["logprobs"], abs=1e-4)
    raw = json.loads(trained.mtrl("trajectory", trained.first, which, "--json").stdout)
    assert raw == {"file": file.name, **record}


def test_the_mask_is_coloured_on_a_terminal(trained: World) -> None:
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        environ = environment(MTRL_HOME=str(trained.home), **extra)
        code, out = on_terminal(
            command("trajectory", trained.first, "0/0"), cwd=trained.folder, environ=environ
        )
        assert code == 0
        assert ("\x1b[32m" in out and "\x1b[36m" in out and "\x1b[2m" in out) == coloured
        assert ("\x1b" in out) == coloured


def test_what_a_model_wrote_is_neutralised(trained: World, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run(trained.first), tmp_path / "runs" / trained.first)
    (run / "config.yaml").unlink()  # its tokenizer is not to be had, so texts are shown
    file = run / "trajectories" / "step-000001.jsonl.gz"
    records = list(read_trajectories(file))
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e\x00\nnext"
    records[0]["turns"][0]["text"] = records[0]["opening"][0]["content"] = hostile
    records[0]["opening"][0]["role"] = records[0]["task"]["id"] = hostile
    records[0]["turns"][0]["calls"] = [
        {"name": hostile, "answer": hostile, "reward": 0.0, "done": True, "error": True}
    ]
    seals = [record.pop("sha256") for record in records]
    assert len(seals) == len(records)
    with gzip.open(file, "wb") as out:
        out.writelines(sealed(json.dumps(record, separators=(",", ":"))) for record in records)
    for arguments in ((), (str(records[0]["group"]),), (str(records[0]["group"]), "--tokens")):
        done = mtrl("trajectory", "last", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not set("\x1b\x07\u202e\x00") & set(done.stdout)
    assert "\\x1b]0;owned" in done.stdout
    assert "without their text" in done.stderr


def test_a_trajectory_that_is_not_there(trained: World) -> None:
    done = trained.mtrl("trajectory", trained.first, "0/999")
    assert done.returncode == 2
    assert "has no trajectory 0/999" in done.stderr
    assert trained.mtrl("trajectory", trained.first, "x").returncode == 2


def test_a_run_is_watched_until_it_ends_and_is_left_alone(trained: World, tmp_path: Path) -> None:
    world = World(tmp_path)
    running = subprocess.Popen(
        command("rollout", "--groups", "400", "run.concurrency=4"),
        cwd=world.folder,
        env=environment(MTRL_HOME=str(trained.home)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("runs/latest/live.json")):
            assert time.monotonic() < deadline, running.communicate()
            time.sleep(0.1)
        for keys, expected in (([(1.0, b"xyzzy\n"), (2.0, b"q")], 0), ([(1.0, b"\x03")], 130)):
            code, screen = on_terminal(
                command("watch", "last"),
                cwd=world.folder,
                environ=environment(),
                size=(30, 140),
                keys=keys,
            )
            assert code == expected
            assert "mtrl watch rollout blackjack" in screen
            assert "q or Ctrl-C: stop watching; the run goes on" in screen
            assert "no longer watching" in screen
            assert "xyzzy" not in screen
            assert "\x1b[?25h" in screen[screen.rindex("\x1b[?25l") :]
        assert running.poll() is None
        latest = tmp_path / "runs" / "latest"
        before = {file.name for file in latest.iterdir()}
        assert (latest / "live.json").stat().st_mode & 0o777 == 0o600
        running.terminate()
        watched = mtrl("watch", "last", cwd=world.folder)
        assert watched.returncode == 0
        assert "cancelled" in watched.stdout
        assert running.wait(timeout=60) == 143
        after = {file.name for file in latest.iterdir()}
        assert "live.json" not in after
        assert before - after <= {"live.json", "live.json.tmp"}
    finally:
        running.kill()
        running.communicate()


@pytest.mark.long
def test_steps_of_a_watched_run_have_the_times_that_the_run_measured(
    trained: World, tmp_path: Path
) -> None:
    """Both steps are committed between two looks at the files."""
    run = shutil.copytree(trained.run(trained.first), tmp_path / "runs" / trained.first)
    end = (run / "run.json").read_text()
    here = {"status": "running", "ended": None, "evaluation": {}, **process_facts(os.getpid())}
    (run / "run.json").write_text(json.dumps(json.loads(end) | here))
    commits = (run / "commits.jsonl").read_text()
    first = commits.splitlines(keepends=True)[0]
    (run / "commits.jsonl").write_text(first)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with (tmp_path / "out.txt").open("w") as out:
        watching = subprocess.Popen(
            command("watch", "last"), cwd=tmp_path, env=environment(), stdout=out
        )
    try:
        deadline = time.monotonic() + 60
        # What it finds at its first look is no news to it, so the news comes again until it is.
        while "step 2/2" not in (tmp_path / "out.txt").read_text():
            assert time.monotonic() < deadline
            for content in (first, commits):
                (run / "commits.jsonl").write_text(content)
                time.sleep(0.7)
        (run / "run.json").write_text(end)
        assert watching.wait(60) == 0
    finally:
        watching.kill()
        watching.wait()
    told = (tmp_path / "out.txt").read_text()
    for line in (one for one in metrics if "seconds_sampling" in one):
        took = line["seconds_sampling"] + line["seconds_training"]
        assert f"step {line['step']}/2 | {took:4.1f}s |" in told


def test_a_policy_that_plays_another_task_than_its_own_is_told(trained: World) -> None:
    other = trained.mtrl("rollout", "conf=records", "policy=last", "--dry-run")
    assert other.returncode == 0, other.stderr
    [warning] = [line for line in other.stdout.splitlines() if line.startswith("WARNING")]
    assert "was trained on the task mtrl_cli.tasks.blackjack.task:Blackjack, and" in warning
    assert warning.endswith("/config.yaml plays its own")
    evaluated = trained.mtrl("eval", "conf=records", "policy=last", "--dry-run")
    assert "was trained on the task" in evaluated.stdout
    own = trained.mtrl("rollout", "conf=blackjack", "policy=last", "--dry-run")
    assert "WARNING" not in own.stdout
