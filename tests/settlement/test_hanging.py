"""Stops of runs in which something never answers: each of them ends, and says what is left."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from mtrl_cli.testing.counted_world import Act
from tests.cli.processes import command, environment
from tests.settlement import audit
from tests.settlement.process import APART, Running
from tests.settlement.scene import ASYNC, scene


def interrupt(run: Running, times: int) -> float:
    """Ctrl-C so many times; the moment of the last one."""
    for index in range(times):
        time.sleep(APART if index else 0.0)
        run.send(signal.SIGINT)
    return time.monotonic()


def test_a_server_that_never_answers_is_left_at_the_first_ctrl_c(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.hold("get_server_capabilities")
        with scenery.train() as run:
            run.wait(lambda: scenery.gate.arrived > 0, "the first contact")
            since = interrupt(run, 1)
            assert run.code() == 130
        assert time.monotonic() - since < 10
        assert "cancelled: train blackjack" in run.out
        assert audit.run_folder(tmp_path) is None


@pytest.mark.long
def test_a_session_that_is_never_opened_does_not_keep_the_run(tmp_path: Path) -> None:
    """The server may have opened it: nobody knows its name, and it expires by itself."""
    with scene(tmp_path) as scenery:
        scenery.hold("create_session")
        with scenery.train() as run:
            run.wait(lambda: scenery.gate.arrived > 0, "create_session")
            since = interrupt(run, 1)
            assert run.code() == 130
        assert time.monotonic() - since < 25
        assert audit.state(scenery.folder)["status"] == "cancelled"
        assert list(audit.unfinished_entries(scenery.folder)) == []


@pytest.mark.long
@pytest.mark.parametrize("endpoint", ["forward_backward", "optim_step"])
def test_a_training_call_without_an_answer_ends_as_unknown(tmp_path: Path, endpoint: str) -> None:
    with scene(tmp_path) as scenery:
        scenery.hold(endpoint)
        with scenery.train() as run:
            run.wait(lambda: scenery.gate.arrived > 0, endpoint)
            since = interrupt(run, 2)
            assert run.code() == 130
        assert time.monotonic() - since < 25
        calls = scenery.calls()
        assert (calls[endpoint], calls["unload_model"]) == ("unknown", "done")
        assert len(scenery.server.requests(endpoint)) == 1
        assert scenery.server.models == {}
        assert scenery.world.live() == []
        assert audit.committed(scenery.folder) == 0
        assert list(audit.groups_without_end(scenery.folder)) == []


@pytest.mark.long
def test_a_model_that_may_have_been_created_is_quarantined(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.hold("create_model")
        with scenery.train() as run:
            run.wait(lambda: scenery.gate.arrived > 0, "create_model")
            since = interrupt(run, 2)
            assert run.code() == 130
        assert time.monotonic() - since < 40
        assert scenery.calls() == {"create_model": "unknown"}
        [left] = audit.state(scenery.folder)["borrows"]["quarantined"]
        assert left.startswith("server_model (")
        assert "may have been made" in left
        assert "the server frees it when its session expires" in left
        assert left in run.out


@pytest.mark.long
def test_a_model_that_cannot_be_unloaded_is_quarantined(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.hold("unload_model")
        with scenery.train("train.steps=1") as run:
            run.wait(lambda: scenery.gate.arrived > 0, "unload_model")
            since = interrupt(run, 2)
            assert run.code() == 130
        assert time.monotonic() - since < 40
        assert scenery.calls()["unload_model"] == "unknown"
        [left] = audit.state(scenery.folder)["borrows"]["quarantined"]
        assert left.startswith("server_model model_1 (")
        assert left in run.out
        assert "Traceback" not in run.err


@pytest.mark.long
def test_a_thread_that_never_comes_back_does_not_keep_the_run(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="never", instances=(1,)))
        with scenery.train() as run:
            run.wait(lambda: scenery.world.waiting("never") == 1, "the step")
            since = interrupt(run, 2)
            assert run.code(60) == 130
        assert time.monotonic() - since < 50
        assert scenery.server.models == {}
        left = audit.state(scenery.folder)["borrows"]["quarantined"]
        assert any(name.startswith("env (a1/train/g0/m") for name in left), left
        assert all("it ends with this process" in name for name in left)
        assert "QUARANTINE" in run.out
        assert len(scenery.world.live()) == 1
        assert scenery.world.live_in_living_processes() == []


@pytest.mark.long
def test_a_drain_that_takes_too_long_becomes_a_stop(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="never"))
        with scenery.train(ASYNC, "run.drain_timeout=1") as run:
            run.wait(lambda: scenery.world.waiting("never") == 2, "the step")
            since = interrupt(run, 1)
            assert run.code() == 130
        assert time.monotonic() - since < 30
        assert "stopping now" in run.out
        assert scenery.world.live() == []
        assert scenery.server.models == {}
        assert audit.committed(scenery.folder) == 0


def test_an_event_loop_that_the_environment_blocks(tmp_path: Path) -> None:
    """The first two signals are heard by nobody; the third one ends it and names what is left."""
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="never", blocks=True))
        with scenery.train(ASYNC) as run:
            run.wait(lambda: scenery.world.waiting("never") == 1, "the step")
            since = interrupt(run, 3)
            assert run.code() == 130
        assert time.monotonic() - since < 5
        assert "aborted: 1 group in flight dropped; not returned: backend 1, env 2" in run.err
        assert "server_model 1 (model_1)" in run.err
        assert f"{scenery.folder.name}/ledger.jsonl names what may still live" in run.err


@pytest.mark.long
def test_cancel_kill_of_a_run_whose_event_loop_is_blocked(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="never", blocks=True))
        with scenery.train(ASYNC) as run:
            run.wait(lambda: scenery.world.waiting("never") == 1, "the step")
            done = subprocess.run(
                command("cancel", "last", "--kill"),
                cwd=tmp_path,
                env=environment(TINKER_API_KEY="none-needed"),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert run.code(10) == 130
        assert "server_model model_1: unloaded" in done.stdout
        assert scenery.server.models == {}


def test_two_signals_at_once_count_as_one(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="step"))
        with scenery.train() as run:
            run.wait(lambda: scenery.world.waiting("step") == 2, "the step")
            run.send(signal.SIGINT)
            time.sleep(0.05)
            run.send(signal.SIGINT)
            run.says("stopping (Ctrl-C)")
            time.sleep(APART)
            scenery.world.open("step")
            assert run.code() == 130
        assert "stopping now" not in run.out
        assert audit.committed(scenery.folder) == 1


@pytest.mark.long
@pytest.mark.parametrize("when", ["init", "reset", "step", "close"])
def test_environments_that_raise_while_a_drain_goes_on(tmp_path: Path, when: str) -> None:
    with scene(tmp_path) as scenery:
        acts = {"reset": Act(gate="gate"), when: Act(error="broken", instances=(2,))}
        scenery.world.script(**acts if when != "reset" else {"init": Act(gate="gate"), **acts})
        with scenery.train("group.on_failure=drop") as run:
            run.wait(lambda: scenery.world.waiting("gate") > 0, "the gate")
            interrupt(run, 1)
            run.says("stopping (")
            scenery.world.open("gate")
            code = run.code()
        state = audit.state(scenery.folder)
        assert scenery.server.models == {}
        assert "Traceback" not in run.err
        if when == "close":
            assert code == 130
            [left] = state["borrows"]["quarantined"]
            assert "broken" in left
        else:
            # The one group of the step failed: that ends the run, also in a drain.
            assert (code, state["status"]) == (1, "failed")
            assert "broken" in run.err
            assert scenery.world.live() == []
