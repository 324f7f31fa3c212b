"""An environment server that answers anything: one line before a run, a failed episode within it,
and no secret for another host."""

from typing import Any

import pytest

from mtrl_cli.envs.interface import Deadlines, SessionLost
from mtrl_cli.envs.openenv_remote import RemoteFactory
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import EnvironmentFault, InfrastructureFailure
from tests.envs.test_wire import Words, act, begun
from tests.envs.wire_server import Peer
from tests.servers.raw import raw, reply


@pytest.mark.parametrize("around", ["state", "error", "observation"])
async def test_frames_as_deep_as_the_parser_goes(around: str, caplog: Any) -> None:
    """What can be read need not be possible to write; nobody waits for a reader that fell over."""
    for depth in range(880, 990, 9):
        deep = "[" * depth + "]" * depth
        frame = (
            f'{{"type":"{around}","data":{{"code":{deep},"message":{deep},"observation":{deep}}}}}'
        )

        async def speaks(peer: Peer, frame: str = frame) -> None:
            await peer.ask()
            await peer.socket.send_str(frame)
            await peer.ask()

        async with begun(speaks) as (environment, _):
            with pytest.raises((SessionLost, EnvironmentFault)) as caught:
                await environment.step(act())
            assert "deadline" not in str(caught.value)
    assert caplog.records == []


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"[" * 100_000),
        reply(b"5"),
        reply(b'["action"]'),
        reply(b"\xff\xfe\x00"),
        reply(b"hello", "Content-Encoding: gzip\r\n"),
        reply(b"", "Location: javascript:1\r\n", "302 Found"),
        reply(b"", "Location: http://[::1\r\n", "302 Found"),
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhi",
        b"\0",
    ],
)
async def test_the_check_before_a_run_meets_anything(answer: bytes) -> None:
    async with raw() as server:
        server.answer = answer
        factory = RemoteFactory(server.url, Words(), deadlines=Deadlines(open=5.0))
        with pytest.raises(MtrlError, match=r"^env\.base_url: "):
            await factory.check()
        with pytest.raises(InfrastructureFailure):
            await factory.open()
        await factory.close()


async def test_a_schema_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtrl_cli.envs.openenv_remote.LARGEST_FRAME", 2**20)
    async with raw() as server:
        server.answer, server.more = b"HTTP/1.1 200 OK\r\n\r\n", bytes(2**16)
        factory = RemoteFactory(server.url, Words(), deadlines=Deadlines(open=30.0))
        with pytest.raises(MtrlError, match="longer than 1,048,576 bytes"):
            await factory.check()


async def test_headers_do_not_follow_a_redirect_to_another_host() -> None:
    """They may hold a key that aiohttp does not know for one."""
    async with raw() as elsewhere, raw() as server:
        port = elsewhere.url.rpartition(":")[2]
        elsewhere.answer = reply(b'{"action": 1}')
        link = f"Location: http://localhost:{port}/schema\r\n"
        server.answer = reply(b"", link, "302 Found")
        factory = RemoteFactory(server.url, Words(), headers={"X-Key": "secret"})
        with pytest.raises(MtrlError, match="redirects to localhost: write the final address"):
            await factory.check()
        with pytest.raises(InfrastructureFailure, match="redirects to localhost"):
            await factory.open()
        await factory.close()
        assert elsewhere.seen == []
