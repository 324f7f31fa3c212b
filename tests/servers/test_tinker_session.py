"""Connecting, the heartbeat, and closing."""

import asyncio
import time

import pytest

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import PolicyFailure
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import AuthError, Refused, ServerError
from mtrl_cli.servers.interface import Capabilities
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer

from .calls import turn


async def test_an_unknown_base_model_lists_the_others(connect):
    async with ScriptedPolicyServer(models=("qwen3-8b", "qwen3-32b")) as server:
        with pytest.raises(UsageError) as caught:
            await connect(server, model="qwen-8b")
    assert "'qwen-8b' is not served by http://127.0.0.1" in str(caught.value)
    assert "did you mean 'qwen3-8b'? served: qwen3-32b, qwen3-8b" in str(caught.value)


async def test_a_wrong_and_a_missing_key(connect):
    async with ScriptedPolicyServer(api_key="tml-right") as server:
        with pytest.raises(AuthError, match="does not take this API key") as wrong:
            await connect(server, key="tml-wrong")
        with pytest.raises(AuthError, match=r"none is set.*set TINKER_API_KEY"):
            await connect(server)
    assert "tml-wrong" not in str(wrong.value)


async def test_a_key_that_the_server_repeats_is_masked(connect):
    async with ScriptedPolicyServer() as server:
        server.faults.add(
            "get_server_capabilities", faults.status(403, {"detail": "tml-mine is not known"})
        )
        with pytest.raises(AuthError, match="<key> is not known") as caught:
            await connect(server, key="tml-mine")
    assert "tml-mine" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://nowhere.invalid:80"])
async def test_an_unreachable_server(connect, url):
    with pytest.raises(
        ServerError, match=r"no training server answers at .*correct server.base_url"
    ):
        await connect(url)


async def test_an_embedded_server_that_is_gone_is_told_with_its_command(connect):
    with pytest.raises(ServerError, match=r"start it \(mtrl serve --port 9\), or correct"):
        await connect("http://127.0.0.1:9", key_variable="MTRL_API_KEY")


async def test_something_else_answers(connect):
    async with ScriptedPolicyServer() as server:
        server.faults.add("get_server_capabilities", faults.body("<html>hello</html>"))
        with pytest.raises(ServerError, match="is not a Tinker server"):
            await connect(server)
        for endpoint in ("get_server_capabilities", "create_session"):
            server.faults.add(endpoint, faults.status(404))
        with pytest.raises(ServerError, match="is not a Tinker server"):
            await connect(server)
        server.faults.add("get_server_capabilities", faults.status(301))
        with pytest.raises(Refused, match="redirects"):
            await connect(server)


async def test_a_server_that_is_starting_is_waited_for(connect):
    async with ScriptedPolicyServer() as server:
        server.faults.add("get_server_capabilities", faults.status(503, retry_after=0), times=2)
        await connect(server)
        server.faults.add("create_session", faults.status(404))
        with pytest.raises(ServerError):
            await connect(server)


async def test_the_first_heartbeat_goes_out_at_once_and_they_go_on(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server, heartbeat_period=0.05)
        for _ in range(100):
            if server.heartbeats >= 3:
                break
            await asyncio.sleep(0.02)
        assert server.heartbeats >= 3
        await client.close()
        await asyncio.sleep(0.05)
        beats = server.heartbeats
        await asyncio.sleep(0.15)
        assert server.heartbeats == beats


def test_the_heartbeat_does_not_need_the_event_loop(connect):
    async def run(url):
        client = TinkerService(
            Address.of(url, None),
            "scripted",
            Capabilities("immutable", True, True, True, True),
            heartbeat_period=0.05,
        )
        await client.connect()
        time.sleep(0.6)  # noqa: ASYNC251 - the point of the test
        await client.close()

    with ScriptedPolicyServer() as server:
        asyncio.run(run(server.url))
        assert server.heartbeats >= 5


async def test_a_forgotten_session_is_named(connect):
    async with ScriptedPolicyServer() as server:
        server.faults.add("session_heartbeat", faults.status(410))
        client = await connect(server)
        for _ in range(100):
            if server.faults.met:
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        server.faults.add("create_sampling_session", faults.status(404, {"detail": "no session"}))
        with pytest.raises(PolicyFailure, match=r"forgot the session: HTTP 410"):
            await client.sample(turn(await client.base_policy()))


async def test_closing_ends_the_session_once(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        for _ in range(2):
            await client.close()
        [request] = server.requests("sessions/session_1/finish")  # answered 404, as some servers do
        assert request.body == {"reason": {"type": "success"}, "detail": None}


@pytest.mark.parametrize(
    "fault", [faults.hang(), faults.drop_request(), faults.status(500, "boom"), faults.body("x")]
)
async def test_a_session_that_cannot_be_ended_holds_nobody_up(connect, fault, monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.tinker.session.FINISH_SECONDS", 0.1)
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        server.faults.add("sessions/session_1/finish", fault)
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < 1.0
        assert server.faults.met == 1


async def test_a_429_does_not_hold_up_the_end(connect, monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.tinker.session.FINISH_SECONDS", 0.1)
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        client._transport.limiter.hold(30.0, "HTTP 429")
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://x", "http://", "http://u:p@x", "http://x:99999", "http://x?y=1", ""],
)
def test_addresses_that_are_none(url):
    with pytest.raises(UsageError, match=r"server\.base_url"):
        Address.of(url, None)


def test_addresses_are_tidied():
    assert Address.of(" https://x.org/tinker/api/v1/ ", "k").url == "https://x.org/tinker"
    with pytest.raises(UsageError, match=r"server\.api_key") as caught:
        Address.of("http://x", "tml-1\nInjected: 1")
    assert "Injected" not in str(caught.value)
