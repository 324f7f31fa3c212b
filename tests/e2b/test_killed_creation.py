"""A run is killed in each moment of a sandbox's creation. `mtrl cancel`, or the next run and then
`mtrl cancel`, leave no sandbox and no open entry in the ledger."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from tests.cli.processes import command, environment, mtrl
from tests.e2b.test_runs import FAST, run
from tests.settlement import audit

pytest.importorskip("e2b")

TWO = ("env.check_seeds=false", "group.per_step=1", "group.size=2")
SECONDS = 60.0


@dataclass(frozen=True)
class Moment:
    """``operation`` is held for both sandboxes of the first group when the kill comes."""

    operation: str
    executes: bool
    answered: bool = False
    """Whether the answer reaches the process, which has no time left to read it."""


MOMENTS = {
    "sent, not executed": Moment("create", executes=False),
    "executed, not answered": Moment("create", executes=True),
    "answered, not recorded": Moment("create", executes=False, answered=True),
    "worker starting": Moment("start", executes=False),
}


@pytest.fixture
def service() -> Iterator[E2BEmulator]:
    with E2BEmulator() as running:
        yield running


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed(cwd: Path, service: E2BEmulator, moment: Moment) -> Path:
    """The folder of the run."""
    gate = faults.Gate()
    held = faults.hold(gate, executes=moment.executes)
    service.faults.add(moment.operation, held, times=2)
    with subprocess.Popen(
        command("train", *FAST, *TWO), cwd=cwd, env=environment(**service.environ()),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            until(lambda: gate.arrived == 2)
            if moment.answered:
                process.send_signal(signal.SIGSTOP)
                gate.open()
                until(lambda: service.counts()["created"] == 2)
                time.sleep(0.2)  # the answers are on their way
        finally:
            process.kill()
    gate.open()
    until(lambda: service.counts()["created"] == 2)
    (folder,) = {path.resolve() for path in (cwd / "runs").iterdir()}
    return folder


CELLS = [*((moment, "next run") for moment in MOMENTS), ("answered, not recorded", "cancel")]
"""The others with `mtrl cancel` are in test_settlement.py."""


@pytest.mark.long
@pytest.mark.parametrize(("moment", "way"), CELLS)
def test_nothing_is_left(tmp_path: Path, service: E2BEmulator, moment: str, way: str) -> None:
    folder = killed(tmp_path, service, MOMENTS[moment])
    assert len(service.live) == 2
    if way == "next run":
        told = run(tmp_path, service, "rollout", *FAST, *TWO, "--groups", "1")
        assert f"2 sandbox(es) that dead runs had left: {folder.name}" in told
        assert service.live == []
    ended = mtrl("cancel", folder.name, cwd=tmp_path, **service.environ())
    assert ended.returncode == 0, ended.stderr
    assert "nothing is left" in ended.stdout + ended.stderr
    assert service.live == []
    assert list(audit.unfinished_entries(folder)) == []
