"""`mtrl cancel` and `mtrl runs` against real runs: alive, blocked, killed."""

import asyncio
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from mtrl_cli.runs.processes import writing_to
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.processes import command, environment, mtrl
from tests.runs.live import SCRIPTED, TINY, Train, cancel, cancelled, gone, read_state, until

BLOCKED = Path(__file__).with_name("blocked_task.py")
KEY = {"TINKER_API_KEY": "scripted-key-4711"}


def store(tmp_path: Path) -> dict[str, str]:
    return {"MTRL_HOME": str(tmp_path / "home")}


def test_a_run_that_is_cancelled_twice_at_once_drains_once_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with Train(tmp_path, TINY, **store(tmp_path)) as run:
        run.until(lambda: run.state().get("step", 0) >= 1)
        state = run.state()
        assert (state["status"], state["borrows"]["quarantined"]) == ("running", [])
        assert state["borrows"]["held"] >= 3  # process, session, model
        assert state["steps"] == 1000
        both = [
            subprocess.Popen(
                command("cancel", "last", *more),
                cwd=tmp_path,
                env=environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            for more in ((), ("--json",))
        ]
        told = [process.communicate(timeout=60)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert told[0] == (
            f"{run.id} was running, asked to drain; "
            "now cancelled (stopped by mtrl cancel); nothing is left\n"
        )
        assert run.process.wait(10) == 130
        state = run.state()
        commits = (run.folder / "commits.jsonl").read_text().count("\n") - 1  # and step 0
        assert (state["status"], state["step"]) == ("cancelled", commits)
        assert state["borrows"] == {"held": 0, "quarantined": []}
        assert gone(run.server())
        assert "stopping (mtrl cancel)" in run.said()

        again = cancel(run.id, cwd=tmp_path)
        assert (again.returncode, again.stdout) == (0, f"{run.id} has already ended: cancelled\n")
        assert run.state() == state
        assert not [b for b in run.ledger("borrow") if b.get("state") == "quarantined"]


def test_a_blocked_event_loop_beats_and_is_aborted_with_a_report(tmp_path: Path) -> None:
    mark = tmp_path / "blocked"
    task = (f'task.entrypoint="{BLOCKED}:Blocked"', "task.name=blocked", "env.check_seeds=false")
    with Train(tmp_path, (*TINY, *task), BLOCKED=str(mark), **store(tmp_path)) as run:
        run.until(mark.exists)
        beat = (run.folder / "heartbeat").stat().st_mtime
        run.until(lambda: (run.folder / "heartbeat").stat().st_mtime > beat)

        waiting = subprocess.Popen(
            command("cancel", run.id[:12]),
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        until((run.folder / "control" / "stop.json").exists)
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate(timeout=30)[1].endswith(
            f"{run.id}: no longer waiting; its request to drain stays\n"
        )
        assert waiting.returncode == 130

        late = cancel(run.id[-4:], "--now", "--wait", "0.5", cwd=tmp_path)
        assert late.returncode == 4
        assert late.stdout == (
            f"{run.id} is still running after 0.5 s, asked to stop now; "
            f"mtrl cancel {run.id} --kill ends it at once\n"
        )
        # A smaller request does not take the larger one back.
        assert cancelled("last", "--wait", "0", cwd=tmp_path)["asked"] == "stop"

        server = run.server()
        told = cancelled("last", "--kill", cwd=tmp_path)
        assert run.process.wait(10) == 130
        assert "aborted:" in run.said()
        assert f"server_process 1 ({server['pid']})" in run.said()
        assert (told["was"], told["asked"], told["now"], told["left"], told["code"]) == (
            "running",
            "kill",
            "lost",
            [],
            0,
        )
        assert gone(server)
        assert "aborted by mtrl cancel --kill" in run.state()["reason"]


def test_a_run_that_gives_no_sign_of_life_is_not_asked_in_vain(tmp_path: Path) -> None:
    with Train(tmp_path, TINY, **store(tmp_path)) as run:
        run.until(lambda: run.state().get("step", 0) >= 1)
        run.process.send_signal(signal.SIGSTOP)
        waited = cancel("last", "--wait", "2", cwd=tmp_path)
        assert waited.returncode == 4
        silent = (
            r"it is stopped, by Ctrl-Z or SIGSTOP: fg, or kill -CONT"
            rf" {run.process.pid}, lets it go on"
        )
        assert re.fullmatch(
            rf"asked {run.id} to drain \({silent}\); waiting for its end, at most 2 s"
            r" \(Ctrl-C leaves the request\)\n",
            waited.stderr,
        )
        assert re.fullmatch(
            rf"{run.id} is still running after 2 s, asked to drain; {silent}; kill -9"
            rf" {run.process.pid} on {re.escape(socket.gethostname())} ends it,"
            rf" mtrl cancel {run.id} then settles it\n",
            waited.stdout,
        )
        shown = mtrl("show", "last", cwd=tmp_path)
        assert re.search(rf"^silent +{silent}$", shown.stdout, re.MULTILINE)
        run.process.send_signal(signal.SIGCONT)  # and it hears the request
        assert run.process.wait(60) == 130
        assert "silent" not in mtrl("show", "last", cwd=tmp_path).stdout


async def test_a_killed_run_is_lost_at_once_and_its_model_is_unloaded(tmp_path: Path) -> None:
    """Killed while a training call is in flight; its server is away when it is first cancelled."""
    async with ScriptedPolicyServer(api_key=KEY["TINKER_API_KEY"]) as server:
        server.faults.add("save_weights_for_sampler", faults.hang())
        port = int(server.url.rpartition(":")[2])
        overrides = (*SCRIPTED, f'server.base_url="{server.url}"', "name=${server.api_key}")
        with Train(tmp_path, overrides, **KEY) as run:
            await asyncio.to_thread(
                run.until, lambda: bool(server.requests("save_weights_for_sampler"))
            )
            assert list(server.models) == ["model_1"]
            run.process.kill()
            run.process.wait()
            listed = await asyncio.to_thread(mtrl, "runs", cwd=tmp_path)
            row = listed.stdout.splitlines()[1].split()
            assert row[:5] == [run.id, "train", "***", "lost", "0/1000"]
            assert f"mtrl cancel {run.id}" in listed.stderr
            await server.stop()

            away = await asyncio.to_thread(cancelled, "last", cwd=tmp_path, **KEY)
            assert (away["was"], away["now"], away["code"]) == ("lost", "lost", 5)
            [left] = away["left"]
            assert left.startswith(
                f"server_model model_1 in Tinker API at {server.url}: no training"
            )
            assert away["unknown_calls"] == ["a1/publish/1"]
            assert list(server.models) == ["model_1"]
            assert read_state(run.folder)["borrows"] == {"held": 0, "quarantined": [left]}

            await server.start(port)
            both = await asyncio.gather(
                *(asyncio.to_thread(cancelled, "last", cwd=tmp_path, **KEY) for _ in range(2))
            )
            assert [(told["now"], told["left"], told["code"]) for told in both] == [
                ("lost", [], 0)
            ] * 2
            assert sorted(told["returned"] for told in both) == [
                [],
                ["server_model model_1: unloaded"],
            ]
            assert server.models == {}
            returned = read_state(run.folder)["reaped"]["returned"]
            assert [line.split()[0] for line in returned] == ["server_session", "server_model"]
            assert server.applied("unload_model") == server.applied("save_weights_for_sampler") == 1

            again = await asyncio.to_thread(cancel, "last", cwd=tmp_path)
            assert (again.returncode, again.stdout) == (0, f"{run.id} has already ended: lost\n")
            for file in run.folder.iterdir():
                assert file.is_dir() or KEY["TINKER_API_KEY"] not in file.read_text(), file
        await asyncio.sleep(0.1)  # what the last client left open is closed by now


@pytest.mark.long
def test_now_drops_what_is_in_flight_and_returns_what_is_held(tmp_path: Path) -> None:
    with ScriptedPolicyServer(sample_seconds=30) as server:
        overrides = (*SCRIPTED, f'server.base_url="{server.url}"')
        with Train(tmp_path, overrides, **KEY) as run:
            run.until(lambda: len(server.requests("asample")) == 2)
            told = cancelled(run.id[:-2], "--now", cwd=tmp_path)
            assert (told["was"], told["now"], told["left"]) == ("running", "cancelled", [])
            assert told["code"] == 0
            assert run.process.wait(10) == 130
            assert server.models == {}


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
def test_a_run_killed_at_any_moment_leaves_no_process(tmp_path: Path, seconds: float) -> None:
    with Train(tmp_path, TINY, **store(tmp_path)) as run:
        with pytest.raises(subprocess.TimeoutExpired):
            run.process.wait(seconds)
        run.process.kill()
        run.process.wait()
        if not list(tmp_path.glob("runs/*/run.json")):
            return  # killed before it was a run
        told = cancelled("last", cwd=tmp_path)
        assert (told["now"], told["left"], told["code"]) == ("lost", [], 0)
        assert all(gone(borrow) for borrow in run.ledger("borrow") if "pid" in borrow)
        assert writing_to(run.folder / "server.log", "mtrl_cli.local") == []
