"""The embedded server as a child: it serves, it ends, and a bad start is one line."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from mtrl_cli import child
from mtrl_cli.config.schema import ServerConfig, ServerKind, Snapshots
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.places import default_store
from mtrl_cli.servers.connect import embedded_for, service_for
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.launch import EmbeddedServer

from .calls import turn


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def sessions_of(embedded: EmbeddedServer) -> list[str]:
    """The sessions that the server holds."""
    headers = {"X-API-Key": embedded.api_key}
    async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
        reply = await http.get(f"{embedded.url}/api/v1/sessions")
    return reply.json()["sessions"]


async def test_it_serves_until_it_is_stopped(tmp_path):
    config = ServerConfig(store=str(tmp_path / "store"))
    embedded = embedded_for(config, log=tmp_path / "logs" / "server.txt")
    async with embedded:
        pid = embedded.pid
        assert embedded.alive
        assert embedded.info["pid"] == pid
        client = service_for(config, embedded)
        await client.connect()
        assert client.session in await sessions_of(embedded)
        assert client.capabilities.context == embedded.info["context"]
        policy = await client.base_policy()
        sample = await client.sample(turn(policy, max_tokens=3))
        assert len(sample.tokens) == len(sample.logprobs) <= 3
        assert sample.policy == policy
        assert client.counts.polls == 0  # the result came with the reply
        session = client.session
        await client.close()
        assert session not in await sessions_of(embedded)
    assert gone(pid)
    embedded.stop()
    assert "mtrl-tiny on http://127.0.0.1" in (tmp_path / "logs" / "server.txt").read_text()


def test_a_hopeless_start_is_one_line_with_the_last_words(tmp_path):
    (tmp_path / "file").write_text("")
    server = EmbeddedServer(tmp_path / "file" / "store", ready_seconds=20)
    with pytest.raises(ServerError, match=r"did not start: --store: .* cannot be used") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert not server.alive
    assert gone(server.pid)


def fake(monkeypatch, script: str) -> EmbeddedServer:
    server = EmbeddedServer(Path("/nowhere"), ready_seconds=0.3)
    server._command = ["/bin/sh", "-c", script]
    monkeypatch.setattr(child, "_TERM_SECONDS", 0.1)
    monkeypatch.setattr(child, "_LAST_WORDS_SECONDS", 0.1)
    return server


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("sleep 60", "not ready within 0.3 s"),
        ("echo starting >&2; sleep 60", "not ready within 0.3 s: starting"),
        ("echo 'no disk' >&2; exit 3", "did not start: no disk"),
        ("exit 0", "did not start"),
        ("echo hello; sleep 60", "did not start"),
        ("trap '' TERM; while :; do sleep 1; done", "not ready within 0.3 s"),
        ("printf '\\033[31mred' >&2; exit 1", r"\\x1b\[31mred"),
    ],
)
def test_a_start_that_fails_leaves_no_process(monkeypatch, script, says):
    server = fake(monkeypatch, script)
    with pytest.raises(ServerError, match=says):
        server.start()
    assert gone(server.pid)
    server.stop()


def test_a_command_that_does_not_exist(monkeypatch):
    server = fake(monkeypatch, "")
    server._command = ["/nowhere/python"]
    with pytest.raises(ServerError, match="cannot be started"):
        server.start()
    assert server.pid is None


async def test_a_cancelled_start_leaves_no_process(monkeypatch):
    server = fake(monkeypatch, "sleep 60")
    entering = asyncio.create_task(server.__aenter__())
    await asyncio.sleep(0.1)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert gone(server.pid)


def test_a_server_that_ends_by_itself_is_seen(monkeypatch):
    server = fake(monkeypatch, 'echo \'{"url": "http://x"}\'; sleep 60')
    server.start()
    assert server.url == "http://x"
    os.killpg(server.pid, signal.SIGKILL)
    for _ in range(100):
        if not server.alive:
            break
        time.sleep(0.02)
    assert not server.alive
    server.stop()


def test_every_run_has_its_own_key_and_shows_it_nowhere():
    one, other = (EmbeddedServer(Path("/x")) for _ in range(2))
    assert one.api_key != other.api_key
    assert one.api_key not in " ".join(one._command)


def test_default_store(monkeypatch, tmp_path):
    monkeypatch.delenv("MTRL_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    assert default_store() == Path("/home/u/.local/share/mtrl/store")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_store() == Path("/data/mtrl/store")
    monkeypatch.setenv("MTRL_HOME", "/mine")
    assert default_store() == Path("/mine/store")


def test_which_client_a_configuration_means():
    tinker = ServerConfig(kind=ServerKind.tinker, base_url="http://127.0.0.1:1", base_model="m")
    assert embedded_for(tinker) is None
    assert service_for(tinker).capabilities.snapshots == "live"
    assert not service_for(tinker).capabilities.dedupes
    hosted = ServerConfig(kind=ServerKind.tinker, base_url="https://x.thinkingmachines.dev/y")
    assert service_for(hosted).capabilities.snapshots == "immutable"
    told = ServerConfig(
        kind=ServerKind.tinker, base_url="http://x", snapshots=Snapshots.newest_only, dedupes=True
    )
    assert service_for(told).capabilities.snapshots == "newest_only"
    assert service_for(told).capabilities.dedupes
    doubted = service_for(ServerConfig(base_url="http://127.0.0.1:1", dedupes=False))
    assert not doubted.capabilities.dedupes
    assert doubted.capabilities.snapshots == "immutable"
    running = ServerConfig(base_url="http://127.0.0.1:1")
    assert embedded_for(running) is None
    assert service_for(running).capabilities.dedupes
    with pytest.raises(UsageError, match=r"server\.base_url: missing"):
        service_for(ServerConfig(kind=ServerKind.tinker))
