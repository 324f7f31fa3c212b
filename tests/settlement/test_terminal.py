"""The terminal, the pipe and the job control of a run that is stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtrl_cli.testing.counted_world import Act
from tests.settlement import audit
from tests.settlement.process import APART, Running
from tests.settlement.scene import Scene, scene

SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Scene]:
    """A scene whose steps wait at the gate ``step``."""
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="step"))
        yield scenery


def reach(scenery: Scene, run: Running) -> None:
    run.wait(lambda: scenery.world.waiting("step") == 2, "the step")


def press(run: Running, key: bytes, times: int = 1) -> None:
    assert run.terminal is not None
    for index in range(times):
        time.sleep(APART if index else 0.0)
        os.write(run.terminal, key)


def settled(scenery: Scene, commits: int) -> None:
    assert scenery.world.live() == []
    assert scenery.server.models == {}
    assert audit.state(scenery.folder)["status"] == "cancelled"
    assert audit.committed(scenery.folder) == commits


def process_state(run: Running) -> str:
    stat = Path(f"/proc/{run.job}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


@pytest.mark.long
@pytest.mark.parametrize(("times", "said", "commits"), [(1, "STOPPING", 1), (2, "STOPPING NOW", 0)])
def test_ctrl_c_on_a_terminal(held: Scene, times: int, said: str, commits: int) -> None:
    with held.train(terminal=True) as run:
        reach(held, run)
        run.says(HIDE)
        press(run, CTRL_C, times)
        run.says(said)
        held.world.open("step")
        assert run.code() == 130
        run.wait_for_output("cancelled: ")
    settled(held, commits)
    assert run.out.rindex(SHOW) > run.out.rindex(HIDE)


def test_an_abort_on_a_terminal_gives_the_cursor_back_and_names_what_is_left(held: Scene) -> None:
    with held.train(terminal=True) as run:
        reach(held, run)
        run.says(HIDE)
        press(run, CTRL_C, 3)
        assert run.code() == 130
        run.wait_for_output("aborted: ")
    assert run.out.rindex(SHOW) > run.out.rindex(HIDE)
    assert "server_model 1 (model_1)" in "".join(run.out.split("\r\n"))


def test_a_closed_terminal_drains(held: Scene) -> None:
    with held.train(terminal=True) as run:
        reach(held, run)
        run.close_terminal()
        time.sleep(APART)
        held.world.open("step")
        assert run.code() == 129
    settled(held, commits=1)


@pytest.mark.long
def test_ctrl_z_and_fg_between_start_and_stop(held: Scene) -> None:
    """Ctrl-Z stops the process and gives the cursor to the shell; it goes on where it was."""
    with held.train(terminal=True, shell=True) as run:
        reach(held, run)
        run.says(HIDE)
        press(run, CTRL_Z)
        run.wait(lambda: process_state(run) == "T", "the sleep")
        run.wait(lambda: run.out.rfind(SHOW) > run.out.rfind(HIDE), "the cursor")
        os.kill(run.job, signal.SIGCONT)
        run.wait(lambda: process_state(run) != "T", "the waking")
        run.wait(lambda: run.out.rfind(HIDE) > run.out.rfind(SHOW), "the cursor again")
        press(run, CTRL_C)
        run.says("STOPPING")
        held.world.open("step")
        assert run.code() == 130
    settled(held, commits=1)
    assert run.out.rindex(SHOW) > run.out.rindex(HIDE)


@pytest.mark.long
def test_a_reader_that_dies_of_the_same_ctrl_c(held: Scene) -> None:
    """``mtrl train | tee log``: Ctrl-C kills tee, and mtrl drains on."""
    reader, writer = os.pipe()
    tee = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
    os.close(reader)
    try:
        with held.train(stdout=writer) as run:
            os.close(writer)
            reach(held, run)
            tee.send_signal(signal.SIGINT)
            run.send(signal.SIGINT)
            assert tee.wait(10) == -signal.SIGINT
            time.sleep(APART)
            held.world.open("step")
            assert run.code() == 130
    finally:
        tee.kill()
        tee.wait()
    settled(held, commits=1)
    assert run.err == ""
