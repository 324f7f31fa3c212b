"""The process: how it starts, refuses to start, ends, and ends with its parent."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtrl_cli.parent import start_time
from tests.local.server_kit import (
    SHAPE,
    Client,
    backward,
    command,
    datum,
    environment,
    make_base,
    start,
    stop,
    until,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def refused(tmp_path: Path, base: Path, *extra: str) -> str:
    """Start what cannot start; its one line."""
    done = subprocess.run(
        command(tmp_path / "store", base, *extra), capture_output=True, text=True, timeout=30,
        env=environment(), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert not (tmp_path / "store").exists()
    return line


def test_a_port_in_use_is_one_line(tmp_path: Path, base: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(tmp_path, base, "--port", str(port))
    assert line == (
        f"mtrl serve: --port: cannot listen on 127.0.0.1:{port}: address already in use; "
        "use another, or 0 for a free one"
    )


def test_what_cannot_start_says_why(tmp_path: Path, base: Path) -> None:
    assert "--port: 70000 is outside 0..65535" in refused(tmp_path, base, "--port", "70000")
    assert "--base: no usable model in" in refused(tmp_path, tmp_path)
    assert "--host: 'no.such.invalid' cannot be resolved" in refused(
        tmp_path, base, "--host", "no.such.invalid"
    )
    assert "the variable MTRL_UNSET is not set" in refused(
        tmp_path, base, "--api-key-env", "MTRL_UNSET"
    )
    assert "--session-ttl: must be above 0" in refused(tmp_path, base, "--session-ttl", "0")
    assert "--parent-pid: no process 4194303" in refused(tmp_path, base, "--parent-pid", "4194303")


def test_a_store_that_cannot_be_made(tmp_path: Path, base: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        command(tmp_path / "file" / "store", base), capture_output=True, text=True, timeout=30,
        env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("mtrl serve: --store: ")
    assert done.stderr.count("\n") == 1


def test_the_ready_line(tmp_path: Path, base: Path) -> None:
    ready_file = tmp_path / "ready.json"
    process, ready = start(tmp_path / "store", base, "--ready-file", str(ready_file))
    assert json.loads(ready_file.read_text()) == ready
    assert ready["pid"] == process.pid
    assert (ready["context"], ready["vocab"]) == (SHAPE.context, SHAPE.vocab)
    client = Client(ready["url"])
    assert client.get("healthz") == {"status": "ok"}
    client.close()
    errors = stop(process)
    assert process.returncode == 0
    assert errors.count("\n") == 1
    assert not ready_file.exists()
    assert list((tmp_path / "store" / "ephemeral").iterdir()) == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_the_middle_of_work(tmp_path: Path, base: Path, sent: signal.Signals) -> None:
    process, ready = start(tmp_path / "store", base)
    client = Client(ready["url"])
    model = client.model(client.session())
    data = [datum([1, *range(2, 47)] * 2) for _ in range(2000)]
    for seq in range(1, 4):
        client.call("forward_backward", backward(model, seq, data))
    began = time.monotonic()
    process.send_signal(sent)
    process.communicate(timeout=10)
    assert process.returncode == 0
    assert time.monotonic() - began < 4
    client.close()


def test_a_child_leaves_ctrl_c_to_its_parent(tmp_path: Path, base: Path) -> None:
    process, ready = start(tmp_path / "store", base, "--parent-pid", str(os.getpid()))
    client = Client(ready["url"])
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert client.get("healthz") == {"status": "ok"}
    client.close()
    stop(process)
    assert process.returncode == 0


PARENT = """
import subprocess, sys, threading, os, time
box = []
def go():
    box.append(subprocess.Popen(sys.argv[1:] + ["--parent-pid", str(os.getpid())],
                                stdout=subprocess.PIPE, start_new_session=True))
if os.environ.get("IN_THREAD"):
    thread = threading.Thread(target=go); thread.start(); thread.join()
else:
    go()
print(box[0].stdout.readline().decode(), end="", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("in_thread", ["", "1"])
def test_it_ends_with_its_parent(tmp_path: Path, base: Path, in_thread: str) -> None:
    """Killed without a chance to say goodbye; the thread that started the child may end."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command(tmp_path / "store", base)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(IN_THREAD=in_thread),
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdin is not None
    ready = json.loads(parent.stdout.readline())
    client = Client(ready["url"])
    time.sleep(0.8)
    assert client.get("healthz") == {"status": "ok"}
    client.close()
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until(lambda: start_time(ready["pid"]) is None, 5)
    assert list((tmp_path / "store" / "ephemeral").iterdir()) == []
