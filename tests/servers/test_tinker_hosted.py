"""The hosted service: tokens in place of keys, bills, rates, cancelled requests.

The hosted service was never contacted: its requests and answers are as its official client
(0.38.0) makes and reads them.
"""

import asyncio
import time

import pytest

from mtrl_cli.rollout.ports import PolicyFailure
from mtrl_cli.servers import errors, keys
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import AuthError, Refused, ServerError, Unknown
from mtrl_cli.servers.keys import Keys
from mtrl_cli.servers.tinker.snapshots import TinkerSnapshots
from mtrl_cli.testing import faults
from mtrl_cli.testing.hosted import Hosted
from mtrl_cli.testing.policy_server import ScriptedPolicyServer

from .calls import Trained, turn

KEY = "tml-the-users-own"


def hosted(**options):
    service = Hosted(**options)
    return service, ScriptedPolicyServer(hosted=service, api_key=KEY, formats="protobuf")


async def joined(connect, server, **options):
    return await connect(server, key=KEY, codec="protobuf", **options)


async def test_a_step_on_the_hosted_service(connect):
    service, server = hosted()
    async with server:
        client = await joined(connect, server)
        assert client.capabilities.cancels
        trained = await Trained(client).prepare("publish")
        await trained.execute("forward_backward", 1)
        await trained.execute("optim_step", 2)
        await trained.execute("publish", 3)
        await client.sample(turn(await client.base_policy()))
        while not server.heartbeats:  # the first goes out at once, on a thread of its own
            await asyncio.sleep(0.01)
        await client.close()

        [token] = service.tokens
        own = [r.endpoint for r in server.requests() if r.headers["X-API-Key"] == KEY]
        assert own == ["client/config", "auth/token"]
        rest = {r.headers["X-API-Key"] for r in server.requests() if r.endpoint not in own}
        assert rest == {token}
        assert [r.endpoint for r in server.requests()][:5] == [
            "client/config",
            "auth/token",
            "get_server_capabilities",
            "client/dynamic_config",
            "create_session",
        ]
        for endpoint in ("client/config", "client/dynamic_config"):
            assert server.requests(endpoint)[0].body == {"sdk_version": "0.38.0"}
        assert server.requests("auth/token")[0].body == {}
        assert server.requests("create_session")[0].body["sdk_version"] == "0.38.0"
        assert [r.body["seq_id"] for r in server.requests("optim_step")] == [2]
        assert server.requests("asample")[0].body["sampling_params"]["stop"] == [2]
        assert server.requests("session_heartbeat")
        assert len(server.requests("sessions/session_1/finish")) == 1


async def test_a_token_is_renewed_at_half_its_life(connect):
    service, server = hosted(token_seconds=1.0)
    async with server:
        client = await joined(connect, server, heartbeat_period=0.05)
        policy = await client.base_policy()
        end = time.monotonic() + 1.6
        while time.monotonic() < end:
            await client.sample(turn(policy))
            await asyncio.sleep(0.02)
        assert 3 <= len(service.tokens) <= 5
        shown = {r.headers["X-API-Key"] for r in server.requests("session_heartbeat")}
        assert len(shown) >= 2
        refused = [r for r in server.requests() if r.headers["X-API-Key"] in service.revoked]
        assert refused == []


@pytest.mark.parametrize("kind", ["optim_step", "forward_backward", "create_model"])
async def test_a_token_that_is_refused_is_replaced_and_the_call_made_again(connect, kind):
    service, server = hosted()
    async with server:
        client = await joined(connect, server)
        trained = await Trained(client).prepare(kind)
        before = server.applied(kind)
        service.revoke()
        await trained.execute(kind)
        assert server.applied(kind) == before + 1
        assert len(service.tokens) == 2


async def test_of_many_who_meet_a_refused_token_one_makes_the_exchange(connect):
    service, server = hosted()
    async with server:
        client = await joined(connect, server)
        policy = await client.base_policy()
        await client.sample(turn(policy))
        service.revoke()
        await asyncio.gather(*(client.sample(turn(policy, seed=i)) for i in range(30)))
        assert len(service.tokens) == 2


async def test_a_key_that_buys_no_token_is_told_at_once(connect):
    _, server = hosted()
    async with server:
        with pytest.raises(AuthError, match="correct TINKER_API_KEY") as caught:
            await connect(server, key="tml-wrong", codec="protobuf")
        assert "tml-wrong" not in str(caught.value)
        assert server.requests("auth/token") == []  # the configuration was refused already


async def test_a_token_that_cannot_be_renewed_never_makes_a_call_unknown(connect):
    service, server = hosted()
    async with server:
        client = await joined(connect, server)
        trained = await Trained(client).prepare("optim_step")
        service.revoke()
        server.faults.add("auth/token", faults.status(500, "boom"), times=-1)
        with pytest.raises(Refused, match="was not executed"):
            await trained.execute("optim_step")
        assert server.applied("optim_step") == 0
        server.faults.clear()
        server.faults.add("auth/token", faults.drop_reply())
        await trained.execute("optim_step")
        assert server.applied("optim_step") == 1


async def test_the_list_of_checkpoints_is_read_with_a_token():
    service, server = hosted()
    async with server:
        snapshots = TinkerSnapshots(Address.of(server.url, KEY))
        assert await snapshots.facts("tinker://m/sampler_weights/x") is None
        [request] = server.requests("training_runs/m/checkpoints")
        assert [request.headers["X-API-Key"]] == service.tokens
        server.faults.add("auth/token", faults.status(401, {"detail": f"no {KEY}"}))
        with pytest.raises(ServerError, match="HTTP 401: no <key>"):
            await snapshots.facts("tinker://m/sampler_weights/x")


async def test_a_token_is_never_shown_to_people(connect):
    service, server = hosted()
    async with server:
        client = await joined(connect, server)
        server.faults.add(
            "asample", faults.status(400, {"detail": f"no {service.tokens[0]} {KEY}"})
        )
        with pytest.raises(PolicyFailure) as caught:
            await client.sample(turn(await client.base_policy()))
        assert "no <key> <key>" in str(caught.value)


async def test_keys_by_themselves(monkeypatch):
    monkeypatch.setattr(keys, "_AGAIN", 0.0)
    made = iter(["plain", "second"])

    async def exchange():
        return next(made)

    shown = Keys("own")
    assert (shown.current, shown.exchanged) == ("own", False)
    await shown.renew()
    assert shown.current == "own"
    await shown.use(exchange)
    assert shown.current == "plain"  # no JWT: its life is not known
    await shown.renew()
    assert shown.current == "second"
    await shown.renew()  # fails, and the old one still counts
    assert shown.current == "second"
    with pytest.raises(RuntimeError):  # StopIteration, inside a coroutine
        await shown.renew(rejected="second")
    assert keys.lifetime("a.e30.c") is None


# --- bills and rates ------------------------------------------------------------------------


async def test_a_bill_is_waited_for_and_says_what_it_is(connect, monkeypatch):
    monkeypatch.setattr(errors, "_BILLING_PAUSE", 0.05)
    async with ScriptedPolicyServer() as server:
        client = await connect(server, training_timeout=0.6)
        trained = await Trained(client).prepare("optim_step")
        server.faults.add("optim_step", faults.status(402, {"detail": "no credit"}), times=2)
        await trained.execute("optim_step")
        assert server.applied("optim_step") == 1
        assert len(server.requests("optim_step")) == 3
        server.faults.add("optim_step", faults.status(402, {"detail": "no credit"}), times=-1)
        with pytest.raises(
            Refused, match=r"paused until its bill is settled .*no credit"
        ) as caught:
            await trained.execute("optim_step", 3)
        assert caught.value.transient
        assert server.applied("optim_step") == 1


async def test_a_bill_met_while_polling_ends_with_the_deadline(connect, monkeypatch):
    monkeypatch.setattr(errors, "_BILLING_PAUSE", 0.05)
    async with ScriptedPolicyServer() as server:
        client = await connect(server, training_timeout=4.0)
        trained = await Trained(client).prepare("optim_step")
        bill = faults.status(402, {"detail": "no credit"})
        server.faults.add("retrieve_future", bill, times=3)
        await trained.execute("optim_step")
        server.faults.add("retrieve_future", bill, times=-1)
        with pytest.raises(Unknown, match="bill is settled"):
            await trained.execute("optim_step", 3)


async def test_nobody_sends_while_the_account_is_paused(connect, monkeypatch):
    monkeypatch.setattr(errors, "_BILLING_PAUSE", 0.3)
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        policy = await client.base_policy()
        await client.sample(turn(policy))
        server.faults.add("asample", faults.status(402, {"detail": "no credit"}))
        first = asyncio.create_task(client.sample(turn(policy)))
        while not server.faults.met:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        before = len(server.requests("asample"))
        others = [asyncio.create_task(client.sample(turn(policy, seed=i))) for i in range(20)]
        await asyncio.sleep(0.15)
        assert len(server.requests("asample")) == before
        await asyncio.gather(first, *others)


async def test_a_pause_longer_than_the_deadline_ends_the_call_at_its_deadline(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server, sample_timeout=0.3)
        policy = await client.base_policy()
        await client.sample(turn(policy))
        client._transport.limiter.hold(30.0, "HTTP 429")
        began = time.monotonic()
        with pytest.raises(PolicyFailure, match="lets nobody send now"):
            await client.sample(turn(policy))
        assert time.monotonic() - began < 2.0


# --- cancelling -----------------------------------------------------------------------------


async def test_a_request_that_is_given_up_is_cancelled(connect):
    service, server = hosted(token_seconds=None)
    server._options["sample_seconds"] = 5.0
    async with server:
        client = await joined(connect, server)
        policy = await client.base_policy()
        tasks = [asyncio.create_task(client.sample(turn(policy, seed=i))) for i in range(5)]
        while len(server.requests("retrieve_future")) < 5:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        asked = {r.body["request_id"] for r in server.requests("retrieve_future")}
        assert sorted(service.cancelled) == sorted(asked)
        assert client.counts.cancels == 5


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_request_that_is_late_is_cancelled_where_the_server_can(connect, cancels):
    service, server = hosted(token_seconds=None, cancels=cancels)
    server._options["sample_seconds"] = 5.0
    async with server:
        client = await joined(connect, server, sample_timeout=0.2)
        assert client.capabilities.cancels is cancels
        with pytest.raises(PolicyFailure, match="no sample within"):
            await client.sample(turn(await client.base_policy()))
        await client.close()
        assert len(service.cancelled) == cancels


async def test_a_server_that_cannot_cancel_is_not_asked(connect):
    async with ScriptedPolicyServer(sample_seconds=5.0) as server:
        client = await connect(server)
        task = asyncio.create_task(client.sample(turn(await client.base_policy())))
        while not server.requests("retrieve_future"):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()
        assert server.requests("cancel_future") == []


# --- what a session says --------------------------------------------------------------------


async def test_what_the_server_says_about_a_session(connect, caplog):
    async with ScriptedPolicyServer() as server:
        opened = {"session_id": "s", "warning_message": "an old\nclient"}
        server.faults.add("create_session", faults.body(opened))
        await connect(server)
        assert "says: an old client" in caplog.text
        server.faults.add("create_session", faults.body({"error_message": "too old"}))
        with pytest.raises(ServerError, match="opens no session: too old"):
            await connect(server)
