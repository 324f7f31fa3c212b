"""What `mtrl cancel` does with the ledger of a run that died."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.ledger import read_ledger
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.runs.reap import read_entries
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.runs.dead import Line, amend, dead_run
from tests.runs.live import cancel, cancelled, gone, read_state

HOST = socket.gethostname()
URL = "http://127.0.0.1:9"


def borrow(key: str, state: str, **facts: Any) -> Line:
    return ("borrow", key, state, facts)


def states(folder: Path) -> dict[str, str]:
    return {entry.key: entry.state for entry in read_ledger(folder / "ledger.jsonl")}


@pytest.mark.parametrize("recorded", [pytest.param("held", marks=pytest.mark.long), "requested"])
def test_an_embedded_server_that_still_runs_is_ended(tmp_path: Path, recorded: str) -> None:
    """Its parent here is this test, so that it does not end by itself; held, its pid is known,
    requested, it is found by the log that it writes."""
    log = tmp_path / "server.log"
    server = EmbeddedServer(tmp_path / "store", log=log)
    try:
        server.start()
        assert server.pid is not None
        facts = process_facts(server.pid)
        key = "run/server_process-2"
        known = {"id": server.pid, **facts, "url": server.url} if recorded == "held" else {}
        folder = dead_run(
            tmp_path / "runs",
            [
                borrow(key, recorded, kind="server_process", place=HOST, **known),
                borrow("run/server_session-3", "requested", kind="server_session", place="x"),
            ],
        )
        log.rename(folder / "server.log")
        told = cancelled("last", cwd=tmp_path)
        name = f"server_process {server.pid}" if known else f"server_process ({key}, id unknown)"
        assert told["returned"][0] == f"{name}: ended"
        assert (told["left"], told["code"]) == ([], 0)
        assert gone(facts)
        assert set(states(folder).values()) == {"released"}
    finally:
        server.stop()


def test_a_pid_that_was_given_away_again_is_not_touched(tmp_path: Path) -> None:
    """The ledger names the pid of this very test, with another start time."""
    mine = process_facts(os.getpid())
    other = {**mine, "pid_start": mine["pid_start"] - 1}
    held = borrow("run/p-1", "held", kind="server_process", place=HOST, id=os.getpid(), **other)
    dead_run(tmp_path / "runs", [held])
    told = cancelled("last", cwd=tmp_path)
    assert told["returned"] == [f"server_process {os.getpid()}: had ended with the run"]


def test_everything_in_the_ledger_is_settled_or_named(tmp_path: Path) -> None:
    place = f"Tinker API at {URL}"
    process = {"kind": "server_process", "place": "far", "host": "far", "boot": "b", "pid": 1}
    folder = dead_run(
        tmp_path / "runs",
        [
            borrow("run/backend-1", "held", kind="env", place="this process"),
            borrow("run/server_process-2", "held", id=1, **process, url=URL),
            borrow("a1/server_model-3", "held", kind="server_model", place=place, id="model_1"),
            borrow("a2/server_model-4", "requested", kind="server_model", place="elsewhere"),
            borrow("a3/server_model-5", "requested", kind="server_model", place="elsewhere"),
            borrow("g/balloon-6", "held", kind="balloon", place="the sky", id="b-1"),
            borrow("g/balloon-7", "quarantined", kind="balloon", place="the sky", remedy="pop it"),
            borrow("g/balloon-8", "released", kind="balloon"),
            ("call", "a1/create_model", "done", {}),
            ("call", "a1/forward_backward/1", "accepted", {"request": "r-9"}),
            ("call", "a1/optim_step/2", "unknown", {}),
            ("call", "a1/optim_step/3", "refused", {}),
            ("call", "a2/create_model", "intent", {}),
        ],
    )
    told = cancelled("last", cwd=tmp_path)
    assert (told["was"], told["now"], told["code"]) == ("lost", "lost", 5)
    assert told["returned"] == [
        "server_model (a3/server_model-5, id unknown): was never created",
        "env (run/backend-1, id unknown): it ended with the run's process",
    ]
    assert told["left"] == [
        "server_process 1 in far: it ends by itself with the run, which cannot be checked from "
        f"here; run mtrl cancel {folder.name} on far",
        f"server_model model_1 in {place}: it lives as long as the embedded server; "
        "see where it lives and remove it there",
        "server_model (a2/server_model-4, id unknown) in elsewhere: it may have been created, and "
        "its id is unknown; the server frees it when its session expires",
        "balloon b-1 in the sky: no way to return a balloon is known; "
        "see where it lives and remove it there",
        "balloon (g/balloon-7, id unknown) in the sky: no way to return a balloon is known; pop it",
    ]
    assert told["unknown_calls"] == [
        "a1/forward_backward/1, accepted as request r-9",
        "a1/optim_step/2",
        "a2/create_model",
    ]
    state = read_state(folder)
    assert (state["status"], state["borrows"]["quarantined"]) == ("lost", told["left"])
    assert state["reaped"]["unknown_calls"] == told["unknown_calls"]
    assert states(folder)["a1/forward_backward/1"] == "unknown"
    again = cancelled("last", cwd=tmp_path)
    assert (again["left"], again["returned"], again["code"]) == (told["left"], [], 5)
    assert "has already ended: lost" in again["said"]


def test_a_run_that_ended_with_something_left_is_settled_later(tmp_path: Path) -> None:
    held = borrow("g/env-1", "quarantined", kind="env", place="this process", id=3)
    folder = dead_run(tmp_path / "runs", [held])
    amend(folder, status="failed", borrows={"held": 0, "quarantined": ["env 3 …"]})
    ended = cancel("last", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (
        0,
        f"{folder.name} has already ended: failed; "
        "returned: env 3: it ended with the run's process; nothing is left\n",
    )
    assert read_state(folder)["status"] == "failed"


def test_damaged_lines_of_a_ledger_are_named_and_the_others_are_settled(tmp_path: Path) -> None:
    held = borrow("g/env-1", "held", kind="env", place="this process", id=3)
    folder = dead_run(tmp_path / "runs", [held])
    ledger = folder / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text('nonsense\n{"key":"x"}\n' + whole + '{"key":[],"state":"a","entry":"b"}\n')
    told = cancelled("last", cwd=tmp_path)
    number = whole.count("\n") + 3
    assert told["code"] == 5
    assert told["returned"] == ["env 3: it ended with the run's process"]
    assert told["left"] == [
        f"line {line} of runs/{folder.name}/ledger.jsonl is damaged: what it names may still live"
        for line in (1, 2, number)
    ]
    again = cancelled("last", cwd=tmp_path)
    assert (again["left"], again["returned"], again["code"]) == (told["left"], [], 5)


def test_who_goes_on_with_a_run_does_not_pass_over_damaged_lines(tmp_path: Path) -> None:
    folder = dead_run(tmp_path / "runs", [borrow("run/x-1", "held", kind="x")])
    ledger = folder / "ledger.jsonl"
    ledger.write_text("nonsense\n" + ledger.read_text())
    with pytest.raises(MtrlError, match=r"ledger.jsonl is damaged \(line 1 is not a JSON object"):
        read_entries(folder)
    ledger.write_text('{"key":"x"}\n')
    with pytest.raises(MtrlError, match=r"ledger.jsonl is damaged \(line 1 is no entry of a ledge"):
        read_entries(folder)


def test_a_run_of_which_nothing_is_known_cannot_be_settled(tmp_path: Path) -> None:
    folder = dead_run(tmp_path / "runs")
    (folder / "run.json").write_text("{torn")
    ended = cancel("last", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "run.json cannot be read" in ended.stderr


CONFIG = """\
name: dead
server: {kind: tinker, base_url: "URL", api_key: "${oc.env:TINKER_API_KEY}", base_model: scripted,
  tokenizer: mtrl-tiny}
env: {entrypoint: "m:E"}
task: {name: t, entrypoint: "m:T"}
budget: {}
eval: {}
group: {}
run: {}
train: {}
"""


@pytest.mark.long
def test_a_model_is_unloaded_with_the_key_from_the_environment(tmp_path: Path) -> None:
    with ScriptedPolicyServer(api_key="k-4711") as server:
        place = f"Tinker API at {server.url}"
        model = borrow("a1/server_model-4", "held", kind="server_model", place=place, id="model_9")
        dead_run(tmp_path / "runs", [model], CONFIG.replace("URL", server.url))
        keyless = cancelled("last", cwd=tmp_path)
        assert "environment variable TINKER_API_KEY is not set" in keyless["left"][0]
        wrong = cancelled("last", cwd=tmp_path, TINKER_API_KEY="k-wrong")
        assert "does not take this API key" in wrong["left"][0]
        told = cancelled("last", cwd=tmp_path, TINKER_API_KEY="k-4711")
        assert (told["code"], told["left"]) == (0, [])
        assert told["returned"] == ["server_model model_9: the server no longer had it"]


@pytest.mark.long
def test_a_server_that_does_not_answer_is_given_up_and_named(tmp_path: Path) -> None:
    with ScriptedPolicyServer() as server, ScriptedPolicyServer() as other:
        server.faults.add("unload_model", faults.drop_reply())
        place = f"Tinker API at {server.url}"
        model = borrow("a1/server_model-4", "held", kind="server_model", place=place, id="model_9")
        dead_run(tmp_path / "runs", [model], CONFIG.replace("URL", server.url))
        moved = dead_run(tmp_path / "moved", [model], CONFIG.replace("URL", other.url))
        told = cancelled("last", cwd=tmp_path, TINKER_API_KEY="none-needed")
        assert told["code"] == 5
        assert "unload_model may have been executed" in told["left"][0]
        told = cancelled(
            moved.name, "--runs-dir", "moved", cwd=tmp_path, TINKER_API_KEY="none-needed"
        )
        assert f"now leads to another server: Tinker API at {other.url}" in told["left"][0]
        assert not other.requests()
