"""Every fault against every training call: the outcome, and what the server had executed.

The one thing that must never happen: a call counted twice by the server, or a call that is
reported as refused and was executed.
"""

import asyncio
import time

import pytest

from mtrl_cli.rollout.ports import ContextOverflow, PolicyFailure
from mtrl_cli.servers.errors import AuthError, Refused, Unknown
from mtrl_cli.servers.strain import Strain
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer

from .calls import ENDPOINTS, Trained, turn

KINDS = list(ENDPOINTS)

# fault on the POST → outcome, executed
POST = {
    "reply lost": (faults.drop_reply(), Unknown, 1),
    "request lost": (faults.drop_request(), Unknown, 0),
    "reply cut": (faults.cut(5), Unknown, 1),
    "500": (faults.status(500, "boom"), Unknown, 0),
    "500 after executing": (faults.status(500, "boom", executes=True), Unknown, 1),
    "502 html": (faults.status(502, "<html><title>Bad Gateway</title></html>"), Unknown, 0),
    "bare 503": (faults.status(503), Unknown, 0),
    "400": (faults.status(400, {"detail": "no"}), Refused, 0),
    "404": (faults.status(404, {"detail": "no"}), Refused, 0),
    "409": (faults.status(409, {"detail": "exists"}), Refused, 0),
    "422": (faults.status(422, {"detail": "no"}), Refused, 0),
    "401": (faults.status(401, {"detail": "key"}), AuthError, 0),
    "302": (faults.status(302, headers={"Location": "http://127.0.0.1:1/"}), Refused, 0),
    "not json": (faults.body("hello"), Unknown, 1),
    "no request id": (faults.body({"status": "pending"}), Unknown, 1),
    "answered twice": (faults.twice(), None, 1),
    "late": (faults.delay(0.2), None, 1),
    "429": (faults.status(429, retry_after=0.05), None, 1),
    "503 refusing": (faults.status(503, {"detail": "the queue is full"}), None, 1),
    "fails, user": (faults.fail("wrong shape", "user"), Refused, 0),
    "fails, User": (faults.fail("wrong shape", "User"), Refused, 0),
    "fails, server": (faults.fail("out of memory", "server"), Unknown, 0),
    "fails half way": (faults.fail("out of memory", "Server", applied=True), Unknown, 1),
    "fails, unknown": (faults.fail("?", "unknown"), Unknown, 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", POST)
async def test_fault_on_the_post(connect, kind, fault):
    planned, outcome, executed = POST[fault]
    async with ScriptedPolicyServer(dedupes=False) as server:
        trained = await Trained(await connect(server)).prepare(kind)
        before = server.applied(ENDPOINTS[kind])
        server.faults.add(ENDPOINTS[kind], planned)
        if outcome is None:
            await trained.execute(kind)
            assert len(trained.accepted) == 1
        else:
            with pytest.raises(outcome) as caught:
                await trained.execute(kind)
            assert type(caught.value) is outcome
            assert one_line(str(caught.value))
            assert kind in str(caught.value)
        assert server.applied(ENDPOINTS[kind]) - before == executed
        assert server.faults.met == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_without_category(connect, kind):
    """400 at the poll: gradients may be half applied, names and loads are not."""
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server)).prepare(kind)
        server.faults.add(ENDPOINTS[kind], faults.fail("Maximum number of adapters (8) reached"))
        expected = Unknown if kind in ("forward_backward", "optim_step") else Refused
        with pytest.raises(expected, match=r"adapters \(8\)"):
            await trained.execute(kind)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("create_model", "unload_model")]
)
@pytest.mark.parametrize(
    "fault", ["reply lost", "request lost", "reply cut", "500 after executing"]
)
async def test_the_same_bytes_go_again_only_where_the_server_dedupes(connect, kind, fault):
    planned, _, _ = POST[fault]
    async with ScriptedPolicyServer(dedupes=True) as server:
        client = await connect(server, dedupes=True)
        trained = await Trained(client).prepare(kind)
        before = server.applied(ENDPOINTS[kind])
        seen = len(server.requests(ENDPOINTS[kind]))
        server.faults.add(ENDPOINTS[kind], planned)
        await trained.execute(kind)
        sent = [request.raw for request in server.requests(ENDPOINTS[kind])[seen:]]
        assert len(sent) == 2
        assert sent[0] == sent[1]
        assert server.applied(ENDPOINTS[kind]) - before == 1
        assert client.counts.training_resends == 1
        assert len(trained.accepted) == 1


@pytest.mark.parametrize("kind", ["create_model", "unload_model"])
async def test_a_call_without_a_sequence_id_never_goes_again(connect, kind):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server, dedupes=True)).prepare(kind)
        before = len(server.requests(kind))
        server.faults.add(kind, faults.drop_reply())
        with pytest.raises(Unknown):
            await trained.execute(kind)
        assert len(server.requests(kind)) - before == 1


async def test_a_refusal_after_a_lost_reply_leaves_the_call_unknown(connect):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server, dedupes=True)).prepare()
        server.faults.add("optim_step", faults.drop_reply())
        server.faults.add("optim_step", faults.status(409, {"detail": "reused"}))
        with pytest.raises(Unknown, match="closed before the reply"):
            await trained.execute("optim_step")
        assert server.applied("optim_step") == 1


async def test_a_refusing_server_is_given_up_within_one_budget(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server, training_timeout=0.6)
        trained = await Trained(client).prepare()
        slow = faults.status(429, {"detail": "slow"}, retry_after=0.01)
        server.faults.add("optim_step", slow, times=-1)
        began = time.monotonic()
        with pytest.raises(Refused) as caught:
            await trained.execute("optim_step")
        assert caught.value.transient
        assert time.monotonic() - began <= 0.6 + 0.2
        assert server.applied("optim_step") == 0


async def test_nothing_listens_any_more(connect):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server, training_timeout=0.3)).prepare()
    with pytest.raises(Refused, match="connection refused") as caught:
        await trained.execute("optim_step")
    assert caught.value.transient


async def test_the_server_comes_back_between_the_attempts(connect):
    server = ScriptedPolicyServer()
    await server.start()
    port = int(server.url.rsplit(":", 1)[1])
    trained = await Trained(await connect(server)).prepare()
    policy = await trained.client.base_policy()
    await server.stop()
    step = asyncio.create_task(trained.execute("optim_step"))
    sampled = asyncio.create_task(trained.client.sample(turn(policy)))
    while trained.client.strain.reissued < 30:  # more often than what may have been executed
        await asyncio.sleep(0.002)
    await server.start(port)
    await asyncio.gather(step, sampled)
    assert server.applied("optim_step") == 1
    await server.stop()


# --- polling --------------------------------------------------------------------------------

POLL = {
    "reply lost": faults.drop_reply(),
    "reply cut": faults.cut(5),
    "500": faults.status(500, "boom"),
    "503": faults.status(503),
    "429": faults.status(429, retry_after=0.02),
    "408": faults.status(408, {"detail": "Timeout waiting for result"}),
    "try again": faults.body({"type": "try_again", "queue_state": "active"}),
    "not json": faults.body("x"),
}


@pytest.mark.parametrize("fault", POLL)
async def test_a_failed_poll_is_repeated_and_the_call_is_not(connect, fault):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        trained = await Trained(client).prepare()
        server.faults.add("retrieve_future", POLL[fault], times=3)
        assert await trained.execute("optim_step") == {"steps": 1.0}
        policy = await client.base_policy()
        server.faults.add("retrieve_future", POLL[fault], times=3)
        assert (await client.sample(turn(policy))).tokens == [2]
        assert server.applied("optim_step") == 1
        assert server.samples == 1


@pytest.mark.parametrize("code", [404, 410, 401, 402])
async def test_a_promise_that_cannot_be_read_leaves_a_training_call_unknown(connect, code):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server)).prepare()
        server.faults.add("retrieve_future", faults.status(code, {"detail": "gone"}), times=-1)
        with pytest.raises(Unknown, match=f"HTTP {code}: gone") as caught:
            await trained.execute("optim_step")
        assert caught.value.request == trained.accepted[0]
        assert server.applied("optim_step") == 1


@pytest.mark.parametrize(
    "fault",
    [
        faults.status(503),
        faults.body({"type": "try_again"}),
        faults.status(408),
        faults.drop_reply(),
    ],
    ids=["503", "try_again", "408", "closed"],
)
async def test_a_server_that_answers_at_once_is_not_hammered(connect, fault, monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.25)
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 10.0)
    async with ScriptedPolicyServer() as server:
        client = await connect(server, training_timeout=0.8)
        trained = await Trained(client).prepare()
        server.faults.add("retrieve_future", fault, times=-1)
        before = len(server.requests("retrieve_future"))
        began = time.monotonic()
        with pytest.raises(Unknown, match=r"no result within 0.8 s"):
            await trained.execute("optim_step")
        assert 0.5 < time.monotonic() - began < 1.8
        assert len(server.requests("retrieve_future")) - before <= 10


async def test_a_server_that_holds_the_poll_is_asked_again_at_the_deadline_only(connect):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server, training_timeout=0.6)).prepare()
        before = len(server.requests("retrieve_future"))
        server.faults.add("retrieve_future", faults.hang(), times=-1)
        with pytest.raises(Unknown, match="may have been executed as request"):
            await trained.execute("optim_step")
        assert len(server.requests("retrieve_future")) - before == 1


# --- sampling -------------------------------------------------------------------------------

AGAIN = {
    "reply lost": faults.drop_reply(),
    "request lost": faults.drop_request(),
    "reply cut": faults.cut(5),
    "500": faults.status(500, "boom"),
    "503": faults.status(503),
    "429": faults.status(429, retry_after=0.02),
    "408": faults.status(408),
    "not json": faults.body("x"),
    "no request id": faults.body({}),
    "session forgotten": faults.status(404, {"detail": "Sampling session not found"}),
    "410": faults.status(410),
}


@pytest.mark.parametrize("fault", AGAIN)
async def test_sampling_goes_again_and_is_counted(connect, fault):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        server.faults.add("asample", AGAIN[fault], times=2)
        sample = await client.sample(turn(await client.base_policy()))
        assert sample.tokens == [2]
        assert client.strain == Strain(2, None)
        assert len(server.requests("asample")) == 3


@pytest.mark.parametrize("code", [400, 401, 403, 413, 422, 302])
async def test_a_permanent_refusal_is_met_once(connect, code):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        policy = await client.base_policy()
        server.faults.add("asample", faults.status(code, {"detail": "no"}), times=-1)
        with pytest.raises(PolicyFailure, match=f"HTTP {code}: no") as caught:
            await client.sample(turn(policy))
        assert caught.value.permanent
        assert len(server.requests("asample")) == 1


async def test_a_promise_lost_with_the_server_is_sampled_again(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        server.faults.add("retrieve_future", faults.status(410))
        server.faults.add("retrieve_future", faults.status(404))
        assert (await client.sample(turn(await client.base_policy()))).tokens == [2]
        assert server.samples == 3


@pytest.mark.parametrize(
    ("planned", "permanent", "attempts"),
    [
        (faults.fail("bad stop ids", "user"), True, 1),
        (faults.fail("Model not loaded"), True, 1),
        (faults.fail("CUDA error", "server"), False, 10),
    ],
)
async def test_a_failed_execution_of_a_sample(connect, planned, permanent, attempts):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        answer = {"request_id": "x"}
        server.faults.add("asample", faults.body(answer), times=-1)
        body = planned.error
        reply = faults.status(400, body) if "detail" in body else faults.body(body)
        server.faults.add(
            "retrieve_future", reply if "detail" in body else faults.status(200, body), times=-1
        )
        with pytest.raises(PolicyFailure) as caught:
            await client.sample(turn(await client.base_policy()))
        assert caught.value.permanent is permanent
        assert len(server.requests("asample")) == attempts


async def test_one_budget_of_time(connect, monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.25)
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 10.0)
    async with ScriptedPolicyServer() as server:
        client = await connect(server, sample_timeout=0.8)
        policy = await client.base_policy()
        server.faults.add("asample", faults.status(503), times=-1)
        began = time.monotonic()
        with pytest.raises(PolicyFailure) as caught:
            await client.sample(turn(policy))
        assert time.monotonic() - began < 1.5
        assert not caught.value.permanent
        assert len(server.requests("asample")) <= 4


async def test_a_sample_that_never_comes(connect):
    async with ScriptedPolicyServer(sample_seconds=60, poll_seconds=0.1) as server:
        client = await connect(server, sample_timeout=0.5)
        with pytest.raises(PolicyFailure, match=r"no sample within 0.5 s"):
            await client.sample(turn(await client.base_policy()))
        assert len(server.requests("asample")) == 1


async def test_context_overflow_is_a_stop(connect):
    async with ScriptedPolicyServer(context=100) as server:
        client = await connect(server)
        policy = await client.base_policy()
        with pytest.raises(ContextOverflow, match="100 tokens"):
            await client.sample(turn(policy, tokens=range(95)))
        server.faults.add("asample", faults.status(500, "prompt too long: 120 > max_model_len 100"))
        with pytest.raises(ContextOverflow):
            await client.sample(turn(policy))
        server.faults.add(
            "retrieve_future", faults.status(400, {"detail": "maximum context length is 100"})
        )
        with pytest.raises(ContextOverflow):
            await client.sample(turn(policy))
        assert len(server.requests("asample")) == 3


async def test_a_429_holds_everybody_back(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        policy = await client.base_policy()
        await client.sample(turn(policy))
        server.faults.add("asample", faults.status(429, retry_after=0.3))
        held = asyncio.create_task(client.sample(turn(policy)))
        await asyncio.sleep(0.1)
        before = len(server.requests("asample"))
        rest = [asyncio.create_task(client.sample(turn(policy, seed=i))) for i in range(20)]
        await asyncio.sleep(0.1)
        assert len(server.requests("asample")) == before
        await asyncio.gather(held, *rest)
        assert server.samples == 22


def one_line(text: str) -> bool:
    return text.isprintable() and 0 < len(text) < 700
