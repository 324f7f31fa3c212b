"""Which run a word names, what is listed, and whether a run lives."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.errors import MtrlError
from mtrl_cli.runs import processes
from mtrl_cli.runs.folder import RunFolder, new_run_id
from mtrl_cli.runs.liveness import Silence, silence, surely_gone
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.runs.registry import NoSuchRun, find_run, list_runs, newest_trained, read_run
from tests.cli.processes import environment, mtrl
from tests.runs.dead import amend, dead_run
from tests.runs.live import until

FIRST, SECOND, THIRD = "20261128-100000-a7aa", "20261129-110000-b1c2", "20261129-120000-a7ab"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs that have ended, and what is none."""
    folder = tmp_path / "runs"
    for name in (FIRST, SECOND, THIRD):
        (folder / name).mkdir(parents=True)
        (folder / name / "run.json").write_text(json.dumps({"status": "finished"}))
    (folder / "latest").symlink_to(SECOND)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "run.json").write_text(json.dumps({"status": "finished"}))
    (folder / "linked").symlink_to(outside)
    (folder / "notes").mkdir()
    (folder / "file").write_text("")
    return folder


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (FIRST, FIRST),
        ("20261128", FIRST),
        ("20261129-11", SECOND),
        ("b1c2", SECOND),
        ("a7ab", THIRD),
        ("last", SECOND),
    ],
)
def test_a_run_is_named_by_id_prefix_tail_or_last(runs: Path, asked: str, found: str) -> None:
    assert find_run(runs, asked).path == runs / found


def test_a_path_with_a_slash_names_a_run_wherever_it_is(runs: Path, tmp_path: Path) -> None:
    assert find_run(tmp_path / "elsewhere", str(runs / FIRST)).id == FIRST
    with pytest.raises(NoSuchRun):
        find_run(runs, f"./{FIRST}")


def test_the_tail_of_a_run_names_it_whatever_other_ids_begin_with(runs: Path) -> None:
    run = runs / "20270101-120000-2026"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"status": "finished"}))
    assert find_run(runs, "2026").path == run


def test_a_new_run_gets_a_tail_that_no_other_run_of_its_folder_has(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["b1c2", "a7ab", "0c0c"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(drawn))
    assert new_run_id(runs).endswith("-0c0c")
    assert next(drawn, None) is None


def test_where_all_tails_are_taken_a_new_one_is_longer(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: ("b1c2", "b1c2d3")[size - 2])
    assert new_run_id(runs).endswith("-b1c2d3")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("20261129", "'20261129' names 2 runs in .*: 20261129-120000-a7ab, 20261129-110000-b1c2"),
        ("a7", "no run 'a7' in .*; there are: 20261129-120000-a7ab, 2026"),
        ("", "no run ''"),
        ("../outside", "no run"),
        (f"../runs/{FIRST}", "no run"),
        ("linked", "no run"),
        ("notes", "no run"),
        ("latest", "no run"),
        (".", "no run"),
    ],
)
def test_what_names_none_or_several_is_refused(runs: Path, asked: str, says: str) -> None:
    with pytest.raises(NoSuchRun, match=says):
        find_run(runs, asked)


@pytest.mark.parametrize("target", ["../outside", "linked", "nowhere", None])
def test_last_without_a_good_link_is_the_newest(runs: Path, target: str | None) -> None:
    (runs / "latest").unlink()
    if target is not None:
        (runs / "latest").symlink_to(target)
    assert find_run(runs, "last").id == THIRD


def test_the_newest_run_is_listed_first(runs: Path) -> None:
    assert [run.id for run in list_runs(runs)] == [THIRD, SECOND, FIRST]
    assert list_runs(runs / "nowhere") == []


def test_a_folder_that_cannot_be_read_is_listed_as_such(runs: Path) -> None:
    (runs / FIRST / "run.json").write_text("{torn")
    (runs / SECOND / "run.json").write_text("[1]")
    assert [run.status for run in list_runs(runs)] == ["finished", "unreadable", "unreadable"]


def test_a_run_lives_as_long_as_its_very_process(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mine", "train", "")
    assert read_run(folder.path).status == "running"
    mine = json.loads((folder.path / "run.json").read_text())
    amend(folder.path, pid_start=mine["pid_start"] + 1)  # the pid was given away again
    assert read_run(folder.path).status == "lost"
    folder.end("finished", None)
    assert read_run(folder.path).status == "finished"
    assert read_run(dead_run(tmp_path)).status == "lost"


@pytest.mark.parametrize(
    "seen",
    [
        {"host": "elsewhere", "boot": "another-boot"},
        {"pid_ns": "pid:[1]"},  # the same kernel, another container
        {"boot": None, "pid_start": None},  # no /proc
    ],
)
def test_from_elsewhere_a_run_lives_while_its_heart_beats(
    tmp_path: Path, seen: dict[str, str | None]
) -> None:
    folder = dead_run(tmp_path)
    amend(folder, **seen)
    beat = folder / "heartbeat"
    assert read_run(folder).status == "running"
    old = time.time() - 20
    os.utime(beat, (old, old))
    assert read_run(folder).status == "lost"


def test_a_heart_that_is_seen_to_beat_lives_whatever_the_clocks_say(tmp_path: Path) -> None:
    folder = dead_run(tmp_path)
    amend(folder, host="elsewhere", boot="another-boot")
    state = read_run(folder).state

    def beat(seconds_ago: float) -> None:
        then = time.time() - seconds_ago
        os.utime(folder / "heartbeat", (then, then))

    beat(3600)
    assert read_run(folder).status == "lost"
    later = threading.Timer(0.5, beat, (3599,))
    later.start()
    assert not surely_gone(state, folder)
    later.join()
    assert surely_gone(state, folder)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("ago", [3600, -3600])
def test_a_heart_that_is_seen_to_beat_is_not_silent_whatever_the_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes], ago: float
) -> None:
    monkeypatch.setattr("mtrl_cli.runs.liveness._CONFIRM_SECONDS", 0.5)
    state = process_facts(sleeper.pid)

    def beat(seconds_ago: float) -> None:
        then = time.time() - seconds_ago
        (tmp_path / "heartbeat").touch()
        os.utime(tmp_path / "heartbeat", (then, then))

    beat(5)
    assert silence(state, tmp_path) is None
    beat(ago)
    later = threading.Timer(0.1, beat, (ago - 1,))
    later.start()
    assert silence(state, tmp_path) is None
    later.join()
    assert silence(state, tmp_path) == Silence(pytest.approx(max(ago, 0.5), abs=60), stopped=False)


def test_a_stopped_process_is_told_at_once(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "heartbeat").touch()
    state = process_facts(sleeper.pid)
    assert silence(state, tmp_path) is None
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: silence(state, tmp_path) is not None)
    assert (told := silence(state, tmp_path)) is not None
    assert told.stopped
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: silence(state, tmp_path) is None)


def test_the_list_tells_a_run_that_is_stopped(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "runs" / FIRST
    folder.mkdir(parents=True)
    state = {"status": "running", **process_facts(sleeper.pid)}
    (folder / "run.json").write_text(json.dumps(state))

    def listed() -> str:
        return CliRunner().invoke(app, ["runs", "--runs-dir", str(folder.parent)]).stdout

    assert "running" in listed()
    assert "running (stopped)" not in listed()
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: "running (stopped)" in listed())
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: "running (stopped)" not in listed())


def test_without_proc_a_pid_that_nobody_has_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dead_run(tmp_path)
    amend(folder, boot=None, pid_ns=None, pid_start=None)
    monkeypatch.setattr(processes, "_PROC", tmp_path / "no-proc")
    assert read_run(folder).status == "lost"
    amend(folder, pid=os.getpid())
    assert read_run(folder).status == "running"  # its heart has just beaten


def test_the_list_as_a_table_and_as_json(runs: Path) -> None:
    evaluation = {"before": {"mean": -0.4123}, "after": {"mean": -0.06}}
    facts = {
        "experiment": "black\x1b[31mjack",
        "status": "finished",
        "created": time.time() - 7200,
        "step": 150,
        "steps": 150,
        "evaluation": evaluation,
        "borrows": {"held": 0, "quarantined": ["sandbox sb-1 …"]},
    }
    (runs / THIRD / "run.json").write_text(json.dumps(facts))
    table = mtrl("runs", cwd=runs.parent)
    assert table.returncode == 0
    head, first, *_ = table.stdout.splitlines()
    assert " ".join(head.split()) == "run kind experiment status step age evaluation quarantined"
    assert first.split() == [
        *(THIRD, "-", "black\\x1b[31mjack", "finished", "150/150", "2h"),
        *("-0.412", "→", "-0.060", "1"),
    ]
    listed = json.loads(mtrl("runs", "--json", "--runs-dir", "runs", cwd=runs.parent).stdout)
    assert [run["run_id"] for run in listed] == [THIRD, SECOND, FIRST]
    assert (listed[0]["quarantined"], listed[0]["evaluation"]) == (1, evaluation)


def test_an_unknown_run_is_one_line_and_exit_3(runs: Path) -> None:
    ended = mtrl("cancel", "../outside", "--json", cwd=runs.parent)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.count("\n") == 1


def test_a_folder_without_runs_is_said_to_have_none(tmp_path: Path) -> None:
    for arguments in ((), ("--runs-dir", "here")):
        (tmp_path / "here").mkdir(exist_ok=True)
        empty = mtrl("runs", *arguments, cwd=tmp_path)
        assert (empty.returncode, empty.stdout) == (0, "")
        assert f"no runs in {arguments[-1] if arguments else 'runs'}" in empty.stderr


def test_a_folder_that_is_not_there_is_an_error_where_it_was_asked_for(tmp_path: Path) -> None:
    for arguments in ((), ("--json",)):
        done = mtrl("runs", "--runs-dir", "nowhere", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: --runs-dir: there is no folder 'nowhere'\n"


def test_listing_and_cancelling_import_nothing_heavy(runs: Path) -> None:
    script = (
        "import sys\n"
        "from mtrl_cli.cli.app import app\n"
        "for arguments in (['runs'], ['cancel', 'last']):\n"
        "    app(arguments, standalone_mode=False)\n"
        "heavy = {'hydra', 'omegaconf', 'yaml', 'numpy', 'httpx', 'aiohttp', 'asyncio', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=runs.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "name",
    ["ledger.jsonl", "run.json.tmp", "report.html", "heartbeat", "control", "control/stop.json",
     "trajectories", "trajectories/step-000001.jsonl.gz"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["show", "report", "cancel", "verify", "trajectory", "resume"])
def test_a_link_in_a_run_is_followed_by_nobody(runs: Path, name: str, command: str) -> None:
    """Neither read nor written: what it leads to is as it was."""
    secret = runs.parent / "secret"
    if "." in name or name == "heartbeat":
        secret.write_text("the secret")
    else:
        secret.mkdir()
    (runs / SECOND / "run.json").write_text('{"status": "running", "kind": "train"}')
    link = runs / SECOND / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(secret)
    words = ["train", "--resume", "b1c2"] if command == "resume" else [command, "b1c2"]
    words += ["--runs-dir", str(runs)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 1, told.output
    assert "is a symbolic link; mtrl follows none" in told.output
    assert "the secret" not in told.output
    if secret.is_file():
        assert secret.read_text() == "the secret"
    else:
        assert list(secret.iterdir()) == []


def test_last_is_no_way_around(runs: Path) -> None:
    (runs / SECOND / "run.json").write_text('{"status": "finished", "kind": "train"}')
    (runs / SECOND / "commits.jsonl").symlink_to("/etc/passwd")
    for find in (lambda: find_run(runs, "last"), lambda: newest_trained(runs)):
        with pytest.raises(MtrlError, match="symbolic link"):
            find()


@pytest.mark.parametrize(
    "asked",
    ["..", "../runs", "/etc", "b1c2/../b1c2", "b1c2\x00", "b1c2@1", "%2e%2e", "~", "*", "\n"],
)
def test_no_name_leads_out(runs: Path, asked: str) -> None:
    with pytest.raises(NoSuchRun):
        find_run(runs, asked)
