"""The trackers themselves: what each shows of a run whose second attempt voided a step, and whose
third went on. Each attempt is a process of its own, and writes nothing to the terminal.

    python -m pip install '.[tensorboard,wandb,trackio,mlflow]'
    python -m pytest -m peer -rs tests/peers/test_trackers.py

What is missing is skipped. Everything stays on this machine: wandb, which has no key,
is offline, the others are local.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.folder import RUN, make_run

pytestmark = pytest.mark.peer

ATTEMPT = """
import sys
from functools import partial
from pathlib import Path
from mtrl_cli.sinks.past import read_past
from mtrl_cli.sinks.relay import Relay
from mtrl_cli.sinks.run_info import RunInfo
from mtrl_cli.sinks.trackers import openers

sink, folder, attempt, *steps = sys.argv[1:]
folder = Path(folder)
past = partial(read_past, folder, int(attempt))
told = []
info = RunInfo(folder.name, "blackjack", folder, "mtrl-test", {"seed": "3", "sinks[0]": sink}, past)
relay = Relay(openers([sink], info), told.append)
for step in steps:
    number, reward = step.split("=")
    relay.log(int(number), {"reward": float(reward), "nothing": float("nan")})
    relay.log(int(number), {"eval/mean": 2 * float(reward)})
relay.close({"status": "finished", "policy": "p2"}, seconds=120)
assert told == [], told
"""

ENDED_BY_FORCE = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
import psutil
from mtrl_cli.sinks.past import read_past
from mtrl_cli.sinks.relay import Relay
from mtrl_cli.sinks.run_info import RunInfo
from mtrl_cli.sinks.trackers import openers

folder, number = Path(sys.argv[1]), int(sys.argv[2])
told = []
info = RunInfo(folder.name, "blackjack", folder, "mtrl-test", {}, partial(read_past, folder, 1))
relay = Relay(openers(["wandb"], info), told.append)
while not list(folder.glob("wandb/offline-run-*/run-*.wandb")):
    assert told == [], told
    time.sleep(0.05)
relay.log(1, {"reward": 1.0})
core, = psutil.Process().children()
core.send_signal(number)
if number == signal.SIGKILL:
    core.wait(30)
for step in (2, 3):
    relay.log(step, {"reward": 1.0})
began = time.monotonic()
relay.close({"status": "finished"}, seconds=5)
assert time.monotonic() - began < 30
line, = told
print(line.removeprefix("sink wandb: "))
sys.stdout.flush()
if number == signal.SIGSTOP:
    core.kill()
    os._exit(0)  # as `mtrl train` does, where a thread does not end
"""

READ_TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage
found = {}
for run in SQLiteStorage.get_runs("mtrl-test"):
    logs = SQLiteStorage.get_logs("mtrl-test", run)
    found[run] = [[line["step"], line["reward"]] for line in logs if "reward" in line]
    assert SQLiteStorage.get_run_config("mtrl-test", run)["seed"] == "3"
print(json.dumps(found))
"""

Curves = dict[str, list[list[float]]]
"""Name → step and reward of each point."""


def python(code: str, *arguments: str, **env: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def tensorboard_curves(run: Path, env: dict[str, str]) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {RUN: [[event.step, event.value] for event in events.Scalars("reward")]}


def wandb_curves(run: Path, env: dict[str, str]) -> Curves:
    from wandb.proto.wandb_internal_pb2 import Record

    found: Curves = {}
    for file in sorted(
        run.glob("wandb/offline-run-*/run-*.wandb"), key=lambda f: f.stat().st_mtime
    ):
        name = file.stem.removeprefix("run-")
        for data in leveldb_records(file.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                if "reward" in items:
                    found.setdefault(name, []).append([items["step"], items["reward"]])
    return found


def leveldb_records(data: bytes) -> list[bytes]:
    """The records of a file in LevelDB's log format, after wandb's header of 7 bytes."""
    block, at, whole, records = 32768, 7, b"", list[bytes]()
    while at + 7 <= len(data):
        left = block - at % block
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            records.append(whole)
            whole = b""
    return records


def trackio_curves(run: Path, env: dict[str, str]) -> Curves:
    read: Curves = json.loads(python(READ_TRACKIO, **env))
    return read


def mlflow_curves(run: Path, env: dict[str, str]) -> Curves:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(env["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name("mtrl-test")
    found: Curves = {}
    for one in client.search_runs([experiment.experiment_id]):
        tags = one.data.tags
        points = client.get_metric_history(one.info.run_id, "reward")
        found[tags["mtrl.name"]] = sorted([point.step, point.value] for point in points)
        assert tags["mtrl.run"] == RUN
        assert tags.get("mtrl.goes_on_as") == (f"{RUN}-a2" if tags["mtrl.name"] == RUN else None)
        assert (one.info.status, tags["mtrl.policy"]) == ("FINISHED", "p2")
        assert one.data.params == {"seed": "3", "sinks_0_": "mlflow"}
    return found


STANDS = [[1, -0.25], [2, 0.125], [3, 0.5]]
VOIDED = {RUN: [[1, -0.25], [2, 9.0]], f"{RUN}-a2": STANDS}


@pytest.mark.parametrize(
    ("sink", "curves", "expected"),
    [
        ("tensorboard", tensorboard_curves, {RUN: STANDS}),
        ("wandb", wandb_curves, VOIDED),
        ("trackio", trackio_curves, VOIDED),
        ("mlflow", mlflow_curves, VOIDED),
    ],
)
def test_a_voided_step_and_the_one_that_stands_are_not_in_one_curve(
    sink: str,
    curves: Callable[[Path, dict[str, str]], Curves],
    expected: Curves,
    tmp_path: Path,
) -> None:
    pytest.importorskip(sink, reason=f"python -m pip install '.[{sink}]'")
    env = {
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    run = make_run(tmp_path / "runs")
    for attempt in (["1", "1=-0.25", "2=9"], ["2", "2=0.125"], ["3", "3=0.5"]):
        assert python(ATTEMPT, sink, str(run), *attempt, **env) == ""
    assert curves(run, env) == expected


@pytest.mark.parametrize(("number", "said"), [(signal.SIGKILL, ""), (signal.SIGSTOP, "still busy")])
def test_wandbs_own_process_may_die_or_hang(number: int, said: str, tmp_path: Path) -> None:
    """One line, and nothing more: not when the process ends either."""
    pytest.importorskip("wandb", reason="python -m pip install '.[wandb]'")
    run = make_run(tmp_path / "runs")
    env = {"HOME": str(tmp_path), "WANDB_API_KEY": ""}
    told = python(ENDED_BY_FORCE, str(run), str(int(number)), **env)
    assert said in told
    assert told.count("\n") == 1
    assert told.endswith("the run goes on without it\n")
