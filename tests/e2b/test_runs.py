"""Whole runs in sandboxes, as processes of their own: the same trajectories as in process, and
nothing left at the provider, however they end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.runs.trajectories import read_trajectories
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from tests.cli.processes import command, environment, mtrl
from tests.settlement import audit

pytest.importorskip("e2b")

FAST = (
    "conf=blackjack_e2b", "env.e2b.per_second=1000", "env.e2b.at_once=64", "run.concurrency=64",
    "env.e2b.settles=2", "train.kl=0", "server.store=store",
)  # fmt: skip
KEPT = ("group", "member", "refill", "task", "tokens", "spans", "logprobs", "reward", "stop")


@pytest.fixture
def service() -> Iterator[E2BEmulator]:
    with E2BEmulator() as running:
        yield running


def run(cwd: Path, service: E2BEmulator, *arguments: str, seconds: float = 120) -> str:
    """Run `mtrl` to its good end; what it said."""
    ended = subprocess.run(
        command(*arguments), cwd=cwd, env=environment(**service.environ()), text=True,
        capture_output=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def trajectories(cwd: Path) -> list[Mapping[str, Any]]:
    """What the run below ``cwd`` played, without the names that differ from run to run."""
    folder = audit.run_folder(cwd)
    assert folder is not None
    files = sorted((folder / "trajectories").iterdir())
    played = [record for path in files for record in read_trajectories(path)]
    played.sort(key=lambda record: (record["group"], record["member"], record["refill"]))
    return [{name: record[name] for name in KEPT} for record in played]


def same_as_embedded(tmp_path: Path, service: E2BEmulator, seconds: float, *size: str) -> int:
    """Train in sandboxes and in process; how many trajectories there were."""
    both = []
    for name, environments in (("sandboxes", "env=e2b"), ("embedded", "env=openenv")):
        (tmp_path / name).mkdir()
        arguments = ("train", *FAST, *size, environments)
        run(tmp_path / name, service, *arguments, seconds=seconds)
        both.append(trajectories(tmp_path / name))
    assert both[0] == both[1]
    assert service.live == []
    counts = service.counts()
    assert counts["created"] == counts["killed"] == len(both[0]) + 2  # and the check of the seeds
    assert list(audit.unfinished_entries(_folder(tmp_path / "sandboxes"))) == []
    return len(both[0])


def _folder(cwd: Path) -> Path:
    folder = audit.run_folder(cwd)
    assert folder is not None
    return folder


def test_a_training_is_the_same_in_sandboxes(tmp_path: Path, service: E2BEmulator) -> None:
    size = ("train.steps=2", "group.per_step=2", "group.size=4")
    assert same_as_embedded(tmp_path, service, 100, *size) == 16


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_30_steps_of_64_episodes(tmp_path: Path, service: E2BEmulator) -> None:
    """conf=blackjack_e2b as it is, but for its pace."""
    assert same_as_embedded(tmp_path, service, 1200) == 1920


# --- runs that die ------------------------------------------------------------------------------


def killed(tmp_path: Path, service: E2BEmulator, ready: Any, *more: str) -> Path:
    """Start a training, and end it with SIGKILL as soon as it is ``ready``; its folder."""
    process = subprocess.Popen(
        command("train", *FAST, "env.check_seeds=false", "group.per_step=2", *more),
        cwd=tmp_path, env=environment(**service.environ()), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not ready():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    return _folder(tmp_path)


def cancel(tmp_path: Path, service: E2BEmulator, *options: str) -> "tuple[int, str]":
    ended = mtrl("cancel", "last", *options, cwd=tmp_path, **service.environ())
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.long
def test_cancel_ends_the_sandboxes_of_a_killed_run(tmp_path: Path, service: E2BEmulator) -> None:
    gate = faults.Gate()
    service.faults.add("send_input", faults.hold(gate), times=-1, skip=6)
    folder = killed(tmp_path, service, lambda: gate.arrived >= 4)
    gate.open()
    assert len(service.live) >= 4
    code, told = cancel(tmp_path, service)
    assert code == 0, told
    assert "nothing is left" in told
    assert service.live == []
    assert list(audit.unfinished_entries(folder)) == []
    assert cancel(tmp_path, service)[0] == 0


@pytest.mark.long
def test_a_killed_run_whose_creations_were_not_answered(
    tmp_path: Path, service: E2BEmulator
) -> None:
    """They have no id in the ledger, and two of them appear only after the run is gone."""
    gate = faults.Gate()
    service.faults.add("create", faults.hold(gate), times=3)
    service.faults.add("create", faults.late(1.5), times=2)
    folder = killed(tmp_path, service, lambda: len(service.seen("create")) >= 5,
                    "env.e2b.settles=20")  # fmt: skip
    assert len(service.live) < len(service.seen("create"))
    code, told = cancel(tmp_path, service)
    gate.open()
    assert code == 0, told
    assert "may still appear: looking for them" in told
    assert service.live == []
    assert service.counts()["created"] == len(service.seen("create"))
    assert list(audit.unfinished_entries(folder)) == []


@pytest.mark.long
def test_what_only_waited_for_its_turn_is_not_waited_for(
    tmp_path: Path, service: E2BEmulator
) -> None:
    """Two sandboxes are allowed, the other members have asked for theirs and sent nothing."""
    gate = faults.Gate()
    service.faults.add("send_input", faults.hold(gate), times=-1)
    folder = killed(tmp_path, service, lambda: gate.arrived >= 2, "env.e2b.at_once=2",
                    "env.e2b.settles=60")  # fmt: skip
    gate.open()
    nameless = [e for e in audit.entries(folder) if e.open and e.facts["kind"] == "sandbox"
                and "id" not in e.facts]  # fmt: skip
    assert nameless
    assert not any("sent" in entry.facts for entry in nameless)
    began = time.monotonic()
    code, told = cancel(tmp_path, service)
    assert code == 0, told
    assert "may still appear" not in told
    assert time.monotonic() - began < 50
    assert service.live == []
    assert list(audit.unfinished_entries(folder)) == []


@pytest.mark.long
def test_without_the_key_they_are_named(tmp_path: Path, service: E2BEmulator) -> None:
    """Those that answered by their ids, the one whose creation was never answered by its run."""
    gate = faults.Gate()
    service.faults.add("create", faults.hold(gate), skip=6)
    folder = killed(tmp_path, service, lambda: gate.holds and len(service.seen("start")) >= 4)
    gate.open()
    held = [e.facts["id"] for e in audit.entries(folder) if e.state == "held" and "id" in e.facts
            and e.facts["kind"] == "sandbox"]  # fmt: skip
    ended = mtrl("cancel", "last", "--json", cwd=tmp_path, E2B_API_KEY="", **_elsewhere(service))
    assert ended.returncode == 5
    left = json.loads(ended.stdout)["left"]
    assert held
    assert all(any(line.endswith(f"e2b sandbox kill {name}") for line in left) for name in held)
    assert any(f"mtrl_run {folder.name}" in line for line in left)
    assert cancel(tmp_path, service)[0] == 0
    assert service.live == []


def _elsewhere(service: E2BEmulator) -> dict[str, str]:
    return {name: value for name, value in service.environ().items() if name != "E2B_API_KEY"}


@pytest.mark.long
def test_the_next_run_ends_what_a_dead_one_left(tmp_path: Path, service: E2BEmulator) -> None:
    folder = killed(tmp_path, service, lambda: len(service.live) >= 4)
    left = set(service.live)
    told = run(tmp_path, service, "rollout", *FAST, "--groups", "1", "group.size=1")
    assert f"sandbox(es) that dead runs had left: {folder.name}" in told
    assert not left & set(service.live)
    assert service.live == []


# --- what keeps a run from beginning --------------------------------------------------------------


def test_without_a_key_the_emulator_is_named(tmp_path: Path) -> None:
    environ = {name: value for name, value in environment().items() if name != "E2B_API_KEY"}
    for option in ((), ("--dry-run",)):
        ended = subprocess.run(
            command("train", "conf=blackjack_e2b", *option), cwd=tmp_path, env=environ,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 2
        assert "environment variable E2B_API_KEY is not set" in ended.stderr
        assert "mtrl dev e2b-emulator" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_sdk_the_extra_is_named(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['e2b'] = None\n")
    environ = environment(E2B_API_KEY="x")
    environ["PYTHONPATH"] = os.pathsep.join((str(hidden), environ["PYTHONPATH"]))
    ended = subprocess.run(
        command("train", "conf=blackjack_e2b"), cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "python -m pip install 'mtrl-cli[e2b]'" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_says_how_many_sandboxes_and_how_long(tmp_path: Path) -> None:
    for option, told in (
        ((), "1,922 in all, 20 at once, 1 created a second: at least 0:32:02"),
        (("env.e2b.plan=pro", "run.concurrency=256"),
         "1,922 in all, 64 at once, 5 created a second: at least 0:06:25"),
    ):  # fmt: skip
        ended = mtrl("train", "conf=blackjack_e2b", "--dry-run", *option, cwd=tmp_path,
                     E2B_API_KEY="x")  # fmt: skip
        assert ended.returncode == 0
        assert told in ended.stdout
    loaded = "import sys, mtrl_cli.assembly; print('e2b' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True,
                           check=True, env=environment())  # fmt: skip
    assert ended.stdout == "False\n"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_sandboxes_are_created(
    tmp_path: Path, service: E2BEmulator, number: signal.Signals
) -> None:
    """256 wanted, 4 allowed, one a second: who only waits for a turn creates nothing."""
    process = subprocess.Popen(
        command("train", *FAST, "env.e2b.at_once=4", "env.e2b.per_second=1", "group.per_step=32",
                "env.check_seeds=false", "run.concurrency=256"),
        cwd=tmp_path, env=environment(**service.environ()), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while service.counts()["created"] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for _ in range(2):
            process.send_signal(number)
            time.sleep(0.3)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, out
    assert service.live == []
    assert service.counts()["created"] <= 5
    assert audit.state(_folder(tmp_path))["borrows"] == {"held": 0, "quarantined": []}
