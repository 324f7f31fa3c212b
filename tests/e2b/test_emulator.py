"""The emulator, through the official SDK: what it does right, and what it does wrong on request."""

import asyncio
import json
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from tests.cli.processes import command, environment

pytest.importorskip("e2b")


async def create(**options: Any) -> Any:
    from e2b import AsyncSandbox

    return await AsyncSandbox.create(**{"timeout": 60, "retries": 0, **options})


async def listed(metadata: dict[str, str]) -> list[str]:
    from e2b import AsyncSandbox, SandboxQuery

    pages, found = AsyncSandbox.list(query=SandboxQuery(metadata=metadata), limit=2), []
    while pages.has_next:
        found += [info.sandbox_id for info in await pages.next_items()]
    return found


async def test_a_sandbox_from_its_creation_to_its_end(emulator: E2BEmulator) -> None:
    odd = {"run": "a b=c&d/%20", "key": "ü"}
    sandbox = await create(metadata=odd)
    await create(metadata={"run": "other"})
    assert await listed(odd) == [sandbox.sandbox_id]
    await sandbox.files.write_files(
        [{"path": "deep/a.txt", "data": "one"}, {"path": "b", "data": "2"}]
    )
    assert await sandbox.files.read("deep/a.txt") == "one"
    done = await sandbox.commands.run("cat deep/a.txt b; echo no >&2; pwd", cwd=".")
    home = done.stdout.removeprefix("one2").strip()
    assert (done.exit_code, done.stderr, Path(home).name) == (0, "no\n", sandbox.sandbox_id)
    assert await sandbox.kill() is True
    assert await sandbox.kill() is False
    assert await sandbox.is_running() is False
    assert emulator.counts() == {
        "created": 2, "live": 1, "most": 2, "killed": 1, "expired": 0, "vanished": 0
    }  # fmt: skip


async def test_a_long_lived_command_with_input(emulator: E2BEmulator) -> None:
    sandbox, told = await create(), asyncio.Queue[str]()
    handle = await sandbox.commands.run(
        "exec cat", background=True, stdin=True, timeout=0, on_stdout=told.put_nowait
    )
    for text in ("hello\n", "ä" * 40_000 + "\n"):
        await handle.send_stdin(text)
        received = ""
        while not received.endswith("\n"):
            piece = await asyncio.wait_for(told.get(), 10)
            assert len(piece.encode()) <= 32 * 1024 + 3
            received += piece
        assert received == text
    await handle.close_stdin()
    assert (await handle.wait()).exit_code == 0


async def test_the_end_of_a_sandbox_takes_what_runs_in_it(emulator: E2BEmulator) -> None:
    from e2b import SandboxNotFoundException, TimeoutException

    sandbox = await create()
    started = await sandbox.commands.run("sleep 300 >/dev/null 2>&1 & echo $!")
    child = int(started.stdout)
    handle = await sandbox.commands.run("sleep 300", background=True, timeout=0)
    await sandbox.kill()
    with pytest.raises(TimeoutException):  # SandboxNotRunning: gone in the middle of the stream
        await handle.wait()
    deadline = time.monotonic() + 5
    while alive(handle.pid) or alive(child):
        assert time.monotonic() < deadline
    with pytest.raises(SandboxNotFoundException):
        await sandbox.set_timeout(10)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_sandbox_lives_as_long_as_it_was_asked_for(emulator: E2BEmulator) -> None:
    await create(timeout=1)
    sandbox = await create(timeout=60)
    assert 58 < emulator.lifetime_left(sandbox.sandbox_id) <= 60
    await sandbox.set_timeout(30)
    assert 28 < emulator.lifetime_left(sandbox.sandbox_id) <= 30
    deadline = time.monotonic() + 5
    while emulator.counts()["expired"] < 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert emulator.live == [sandbox.sandbox_id]


async def test_a_plan_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    from e2b import RateLimitException, SandboxException

    with E2BEmulator(at_once=2, per_second=3, longest=3600) as limited:
        for name, value in limited.environ().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SandboxException, match="400: timeout cannot be greater than 1 hours"):
            await create(timeout=3601)
        first, _ = await create(), await create()
        with pytest.raises(RateLimitException, match="concurrent"):
            await create()
        await first.kill()
        await create()
        with pytest.raises(RateLimitException, match="rate limit"):
            await create()
        assert limited.counts()["most"] == 2


async def test_an_idempotency_key_makes_one_sandbox(emulator: E2BEmulator) -> None:
    one, two = [await create(idempotency_key="a-1") for _ in range(2)]
    assert one.sandbox_id == two.sandbox_id
    assert emulator.counts()["created"] == 1


@pytest.mark.parametrize(
    ("fault", "raised", "lives"),
    [
        (faults.drop_reply(), httpx.RemoteProtocolError, 1),
        (faults.drop_request(), httpx.RemoteProtocolError, 0),
        (faults.reset(), httpx.TransportError, 1),
        (faults.status(504, {"code": 504, "message": "late"}, executes=True), None, 1),
        (faults.status(429, {"code": 429, "message": "slow"}, retry_after=2), None, 0),
        (faults.status(503, "<html>", headers={"Content-Type": "text/html"}), ValueError, 0),
        (faults.hang(), httpx.ReadTimeout, 1),
    ],
)
async def test_faults_of_a_creation(
    emulator: E2BEmulator, fault: faults.Fault, raised: type[Exception] | None, lives: int
) -> None:
    from e2b import SandboxException

    emulator.faults.add("create", fault)
    with pytest.raises(raised or SandboxException):
        await create(request_timeout=0.2)
    assert len(emulator.live) == lives


async def test_faults_inside_a_sandbox(emulator: E2BEmulator) -> None:
    from e2b import TimeoutException

    sandbox = await create()
    emulator.faults.add("output", faults.reset())
    with pytest.raises(Exception, match=r"reset|closed|error"):
        await sandbox.commands.run("echo lost")
    assert (await sandbox.commands.run("echo found")).stdout == "found\n"
    emulator.faults.add("kill", faults.late(0.3))
    began = time.monotonic()
    assert await sandbox.kill()
    assert time.monotonic() - began >= 0.3
    hidden = await _hidden(emulator)
    assert await listed({"run": "h"}) == []
    await asyncio.sleep(0.4)
    assert await listed({"run": "h"}) == [hidden]
    sandbox = await create()
    emulator.faults.add("start", faults.vanish())
    with pytest.raises(TimeoutException, match="was not found"):
        await sandbox.commands.run("true")
    assert emulator.counts()["vanished"] == 1


async def _hidden(emulator: E2BEmulator) -> str:
    emulator.faults.add("create", faults.hide(0.4))
    return str((await create(metadata={"run": "h"})).sandbox_id)


def test_the_command_serves_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    environ = environment(TMPDIR=str(tmp_path))
    server = subprocess.Popen(
        command("dev", "e2b-emulator"), stdout=subprocess.PIPE, text=True, env=environ
    )
    try:
        assert server.stdout is not None
        told = dict(
            server.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(4)
        )
        script = (
            "from e2b import Sandbox\n"
            "box = Sandbox.create(timeout=60)\n"
            "print(box.commands.run('sleep 300 & echo $!', background=True).pid)\n"
        )
        subprocess.run(
            [command()[0], "-c", script], env={**environ, **told}, check=True, capture_output=True
        )
        with urllib.request.urlopen(told["E2B_API_URL"] + "/emulator") as reply:
            assert json.load(reply)["live"] == 1
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=20)
    finally:
        server.kill()
        server.wait()
    assert server.returncode == 0
    assert "ended: 1 sandboxes created, at most 1 at once, 0 killed, 0 expired" in out
    assert list(tmp_path.iterdir()) == []
