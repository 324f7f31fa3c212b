"""Real runs of every kind pass, however they ended."""

import json
from pathlib import Path

from mtrl_cli.runs.stop import Stage
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.verify.runs import (
    Player,
    attempt,
    checked,
    findings,
    lines,
    played,
    step_file,
    text_of,
    write_text,
)

PLAYED = "trajectories/rollout.jsonl.gz"


def test_a_resumed_run(resumed_run: Path) -> None:
    report = checked(resumed_run)
    assert report.findings == []
    assert report.notes == []
    kinds = [(r["kind"], r.get("step", r.get("to"))) for r in lines(resumed_run, "commits.jsonl")]
    assert kinds == [
        ("commit", 0), ("commit", 1), ("commit", 2), ("commit", 3), ("rollback", 2),
        ("commit", 3), ("commit", 4),
    ]  # fmt: skip
    checks = report.checked
    assert checks["commits"] == 5
    assert checks["rollbacks"] == 1
    assert checks["groups"] == 8
    assert checks["trajectories"] == 4 * 2 * 3 + 1
    assert checks["trajectory files"] == 4
    calls = [line for line in lines(resumed_run, "ledger.jsonl") if line["state"] == "intent"]
    assert checks["training calls"] == len(calls)


def test_a_failed_run_and_a_run_of_one_attempt(tmp_path: Path) -> None:
    with ScriptedPolicyServer(sampler=Player()) as server:
        run = attempt(server, tmp_path / "runs")
        assert findings(run) == []
    with ScriptedPolicyServer(sampler=Player()) as server:
        server.faults.add("optim_step", faults.fail("out of memory", "server"), skip=1)
        run = attempt(server, tmp_path / "failing" / "runs", fails=True)
        assert findings(run) == []


def test_a_run_with_lag_that_was_drained_and_one_that_was_stopped(tmp_path: Path) -> None:
    for name, stage in (("drained", Stage.DRAIN), ("stopped", Stage.STOP)):
        with ScriptedPolicyServer(sampler=Player()) as server:
            lag = ("train.max_policy_lag=2", "train.steps=8", "train.checkpoint_every=1")
            parent = tmp_path / name / "runs"
            run = attempt(server, parent, *lag, stop=(stage, 2))
            assert findings(run) == []
            run = attempt(server, parent, *lag, run=run)
            assert findings(run) == []
        groups = [g for c in lines(run, "commits.jsonl") for g in map(int, c.get("groups", ()))]
        assert sorted(groups) == list(range(16))


def test_a_run_that_was_stopped_between_an_optimizer_step_and_its_commit(tmp_path: Path) -> None:
    with ScriptedPolicyServer(sampler=Player()) as server:
        runs = tmp_path / "runs"
        run = attempt(server, runs, stop=(Stage.STOP, 2), before="publishing")
        calls = lines(run, "ledger.jsonl")
        stepped = [c for c in calls if "optim_step" in c["key"] and c["state"] == "done"]
        committed = [c["step"] for c in lines(run, "commits.jsonl")]
        assert (len(stepped), committed) == (2, [0, 1])
        assert findings(run) == []
        assert findings(attempt(server, runs, run=run)) == []


def test_a_run_whose_batches_are_empty(tmp_path: Path) -> None:
    """No reward differs, so nothing is trained and no policy is published but the first."""
    with ScriptedPolicyServer(sampler=lambda tokens, seed: ([2], [-0.5])) as server:
        run = attempt(server, tmp_path / "runs")
    assert findings(run) == []
    assert {how for c in lines(run, "commits.jsonl") for how in c["groups"].values()} == {
        "constant_reward"
    }


def test_episodes_that_were_only_played(tmp_path: Path) -> None:
    """Under a named policy of a later step; three groups of three, one member refilled."""
    with ScriptedPolicyServer(sampler=Player(4 * 2 * 3 * 2 + 5)) as server:
        trained = attempt(server, tmp_path / "runs")
        run = played(server, tmp_path / "played", lines(trained, "commits.jsonl")[-1]["policy"])
    report = checked(run)
    assert report.findings == []
    assert report.checked["trajectories"] == 10
    assert report.checked["groups"] == 3

    text = text_of(run, PLAYED).replace(b'"member":1', b'"member":2', 1)
    write_text(run, PLAYED, text)
    assert {f.file for f in findings(run)} == {PLAYED}


def test_a_run_without_trajectories(tmp_path: Path) -> None:
    with ScriptedPolicyServer(sampler=Player()) as server:
        run = attempt(server, tmp_path / "runs", "run.trajectories=false")
    report = checked(run)
    assert report.findings == []
    assert report.checked["trajectories"] == 0


def test_a_torn_last_line_was_not_written(copy: Path) -> None:
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step":5,')
    report = checked(copy)
    assert report.findings == []
    assert report.notes == ["metrics.jsonl: its last line has no end, so it counts as not written"]


def test_of_a_script_what_it_records_is_checked(copy: Path) -> None:
    """A script (`mtrl_cli.script`) keeps its own books, but its episodes are mtrl's."""
    state = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**state, "recorded": "script"}))
    for name in ("commits.jsonl", "groups.jsonl", "metrics.jsonl"):
        (copy / name).write_text("")
    report = checked(copy)
    assert report.findings == []
    assert report.checked["trajectories"] == 25
    assert "a script carried this run out" in report.notes[0]
    write_text(copy, step_file(1), text_of(copy, step_file(1)).replace(b"-0.25", b"-0.2", 1))
    assert [(f.file, f.line) for f in findings(copy)] == [(step_file(1), 1)]
