"""What `mtrl show` and `mtrl trajectory` make of attempts, failures and ends."""

import json
import os
from pathlib import Path

from tests.cli.played import RUN, episode, failed, rollout
from tests.cli.processes import mtrl


def test_tokens_of_a_group_are_those_that_its_attempts_sampled(tmp_path: Path) -> None:
    turns = [{"text": "hit", "tokens": count, "calls": []} for count in (3, 4)]
    rollout(
        tmp_path / "runs", episode(0, 0, turns=turns), episode(0, 1), failed(0, 1), failed(1, 0)
    )
    shown = mtrl("show", "last", cwd=tmp_path).stdout.splitlines()
    head = next(number for number, line in enumerate(shown) if line.startswith("group"))
    rows = [line.split() for line in shown[head : head + 3]]
    assert [row[3] for row in rows] == ["tokens", "9", "1"]


def test_attempts_at_a_member_are_told_apart(tmp_path: Path) -> None:
    rollout(
        tmp_path / "runs",
        episode(8, 0),
        episode(8, 1, refill=1),
        failed(8, 1),
        failed(8, 4, refill=1),
        failed(8, 4),
    )
    shown = mtrl("trajectory", "last", "8", cwd=tmp_path).stdout.splitlines()
    assert [line.partition("  ")[0] for line in shown if line.startswith("8/")] == [
        "8/0",
        "8/1 (attempt 1, failed)",
        "8/1 (attempt 2)",
        "8/4 (attempt 1, failed)",
        "8/4 (attempt 2, failed)",
    ]
    one = mtrl("trajectory", "last", "8/4", cwd=tmp_path).stdout
    assert one.count("8/4 (attempt ") == 2
    [row] = mtrl("trajectory", "last", cwd=tmp_path).stdout.splitlines()[1:]
    assert row.split()[3] == "3"
    other = mtrl("trajectory", "last", "8/2", cwd=tmp_path)
    assert other.returncode == 2
    assert f"{RUN} has no trajectory 8/2; of group 8 it has 8/0, 8/1, 8/4" in other.stderr


def test_a_killed_run_lasted_until_its_last_sign_of_life(tmp_path: Path) -> None:
    """Of two attempts the latest one is timed, and said to be; its reaping days later is no
    life."""
    resumed = [{"attempt": 2, "time": 5000.0, "step": 0, "policy": None}]
    times = {"created": 1000.0, "ended": 900_000.0, "attempt": 2, "resumed": resumed}
    run = rollout(tmp_path / "runs", status="lost", **times)
    (run / "heartbeat").touch()
    os.utime(run / "heartbeat", (5065, 5065))
    shown = mtrl("show", "last", cwd=tmp_path).stdout
    assert "lost: e in 00:01:05 of attempt 2\n" in shown
    assert "episodes   0 in 2 attempts, " in shown
    (run / "heartbeat").unlink()
    line = {"step": 1, "attempt": 2, "time": 5030.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert "lost: e in 00:00:30 of attempt 2\n" in mtrl("show", "last", cwd=tmp_path).stdout


def test_runs_tells_of_what_kind_they_are_and_which_lost_ones_are_settled(tmp_path: Path) -> None:
    seen = {}
    for number, state in enumerate(({}, {"reaped": {}})):
        rollout(tmp_path / f"{number}", kind="doctor", status="lost", **state)
        done = mtrl("runs", "--runs-dir", f"{number}", cwd=tmp_path)
        head, row = done.stdout.splitlines()
        assert head.split()[:4] == ["run", "kind", "experiment", "status"]
        assert row.split()[1:3] == ["doctor", "e"]
        seen[number] = ("lost, settled" in row, "mtrl cancel" in done.stderr)
    assert seen == {0: (False, True), 1: (True, False)}


def test_groups_are_listed_in_their_order_however_they_finished(tmp_path: Path) -> None:
    rollout(tmp_path / "runs", episode(2, 0), episode(0, 1), episode(10, 0), episode(0, 0))
    rows = mtrl("trajectory", "last", cwd=tmp_path).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["0", "2", "10"]
