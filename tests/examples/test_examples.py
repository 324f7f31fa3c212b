"""The examples as they are: real processes on an embedded server, to their end and interrupted.

An embedded server runs in a session of its own and ends by itself when its parent is gone; a
test therefore looks for it at the very moment when the example has ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BATCH, STREAMING = "batch_rollout.py", "streaming_training.py"
SMALL = ("group.size=2", "group.per_step=2", "server.store=store")
ENDLESS = (*SMALL, "train.steps=100000", "group.per_step=4")


class Example:
    """One example in flight, in a folder of its own."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / name), *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, moment: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not moment():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "the moment did not come"
            time.sleep(0.01)

    def run(self) -> dict[str, Any]:
        return json.loads((self.folder / "runs/latest/run.json").read_text())

    def recorded(self, *facts: str) -> bool:
        """Whether a line of the ledger says all of this."""
        ledger = self.folder / "runs/latest/ledger.jsonl"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return any(all(f'"{fact}"' in line for fact in facts) for line in lines)

    def end(self, timeout: float = 60) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout)
        assert self.children() == [], "the embedded server is still there"
        return self.process.returncode, out, err

    def children(self) -> list[str]:
        """Processes that were told to end with this one, wherever they hang in the tree."""
        mark = ["--parent-pid", str(self.process.pid)]
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if " ".join(mark) in " ".join(words):
                found.append(file.parent.name)
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Example]]:
    started: list[Example] = []

    def example(name: str, *arguments: str) -> Example:
        started.append(Example(tmp_path, name, *arguments))
        return started[-1]

    yield example
    for made in started:
        if made.process.poll() is None:
            made.process.kill()
            made.process.communicate()


def test_a_batch_is_played(start: Callable[..., Example]) -> None:
    example = start(BATCH, "--groups", "2", *SMALL)
    code, out, err = example.end(120)
    assert (code, err) == (0, "")
    assert out.count("group ") == 2
    assert out.count("done: ") + out.count("answer: ") + out.count("max_turns: ") >= 1
    assert (example.folder / "runs/latest/trajectories/rollout.jsonl.gz").exists()
    assert example.run()["status"] == "finished"


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.long), 1])
def test_three_steps_are_trained(start: Callable[..., Example], lag: int) -> None:
    example = start(STREAMING, *SMALL, "train.steps=3", f"train.max_policy_lag={lag}")
    code, out, err = example.end(120)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == ["step 1", "step 2", "step 3"]
    commits = example.folder / "runs/latest/commits.jsonl"
    consumed = [json.loads(line)["groups"] for line in commits.read_text().splitlines()]
    assert sorted(group for groups in consumed for group in groups) == list("012345")
    assert example.run()["borrows"] == {"held": 0, "quarantined": []}


def test_bad_input_is_told_without_a_traceback(start: Callable[..., Example]) -> None:
    code, out, err = start(STREAMING, "train.step=3").end()
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown key 'train.step'\n")
    assert "train.steps" in err
    assert "Traceback" not in err


def imports(example: Example) -> bool:
    """Python has loaded something of ours, and most of it is still to come."""
    maps = Path(f"/proc/{example.process.pid}/maps")
    return "_ssl" in maps.read_text() or (example.folder / "runs").exists()


MOMENTS: dict[str, Callable[[Example], Any]] = {
    "imports": imports,
    "server starts": lambda example: example.recorded("server_process", "requested"),
    "session opens": lambda example: example.recorded("server_process", "held"),
    "model is made": lambda example: example.recorded("create_model", "intent"),
    "sampling": lambda example: example.recorded("a1/publish/1", "done"),
    "training call": lambda example: example.recorded("forward_backward", "intent"),
    "second step": lambda example: example.recorded("a1/publish/4", "intent"),
}


SAMPLE = ("imports", "training call")


@pytest.mark.parametrize(
    "moment",
    [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.long) for name in MOMENTS],
)
def test_ctrl_c_leaves_nothing(start: Callable[..., Example], moment: str) -> None:
    example = start(STREAMING, *ENDLESS, "train.max_policy_lag=1")
    example.wait_for(lambda: MOMENTS[moment](example))
    example.process.send_signal(signal.SIGINT)
    code, _, err = example.end()
    assert (code, err) == (130, "")
    if moment != "imports":
        run = example.run()
        assert (run["status"], run["borrows"]) == ("cancelled", {"held": 0, "quarantined": []})
        assert example.recorded("server_process", "released")


@pytest.mark.long
def test_ctrl_c_in_a_batch_leaves_nothing(start: Callable[..., Example]) -> None:
    example = start(BATCH, "--groups", "200", *SMALL)
    example.wait_for(lambda: example.recorded("server_session", "held"))
    example.process.send_signal(signal.SIGINT)
    code, out, err = example.end()
    assert (code, out, err) == (130, "", "")


@pytest.mark.long
def test_ctrl_c_while_everything_is_returned(start: Callable[..., Example]) -> None:
    """The second one, in the middle of what the first one began, changes nothing."""
    example = start(STREAMING, *ENDLESS)
    example.wait_for(lambda: example.recorded("forward_backward", "intent"))
    example.process.send_signal(signal.SIGINT)
    example.wait_for(lambda: example.recorded("server_session", "returning"))
    example.process.send_signal(signal.SIGINT)
    code, _, err = example.end()
    assert (code, err) == (130, "")
    assert example.recorded("server_process", "released")


@pytest.mark.long
def test_sigterm_is_told_in_the_exit_code(start: Callable[..., Example]) -> None:
    example = start(STREAMING, *ENDLESS)
    example.wait_for(lambda: example.recorded("a1/publish/1", "done"))
    example.process.terminate()
    code, _, err = example.end()
    assert (code, err) == (143, "")


@pytest.mark.long
def test_mtrl_cancel_stops_a_script_too(start: Callable[..., Example]) -> None:
    example = start(STREAMING, *ENDLESS)
    example.wait_for(lambda: example.recorded("a1/publish/1", "done"))
    cancel = [sys.executable, "-m", "mtrl_cli", "cancel", example.run()["id"]]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(cancel, cwd=example.folder, env=environ, timeout=60, check=False)
    code, _, err = example.end()
    assert (code, err) == (130, "")
    assert example.run()["status"] == "cancelled"


@pytest.mark.parametrize("name", [BATCH, STREAMING])
def test_help(tmp_path: Path, name: str) -> None:
    out, err = (example := Example(tmp_path, name, "--help")).process.communicate(timeout=60)
    assert example.process.returncode == 0, err
    assert "KEY=VALUE" in out
    assert list(tmp_path.iterdir()) == []
