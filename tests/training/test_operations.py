"""Training calls: their order and numbers, and that a large batch does not hold up the loop."""

import asyncio
import socket
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.runs.files import read_records
from mtrl_cli.runs.ledger import Ledger
from mtrl_cli.servers import transport
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.interface import Capabilities
from mtrl_cli.servers.tinker.codec import parse, parse_aside
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training import operations as training
from mtrl_cli.training.operations import Operations, TrainingError
from tests.servers.calls import ADAM, ENDPOINTS, LOSS, SPEC, datum
from tests.servers.test_strain import until


@pytest.fixture
async def world(tmp_path):
    """A scripted server, the operations of a run on it, and what the ledger holds of calls."""
    async with ScriptedPolicyServer() as server:
        client = TinkerService(
            Address.of(server.url, None),
            "scripted",
            Capabilities("immutable", True, True, True, True),
        )
        await client.connect()
        ledger = Ledger(tmp_path / "ledger.jsonl")
        operations = Operations(client, ledger, attempt=1, vocab=1000)
        await operations.create_model(SPEC)

        def calls():
            return [
                (line["key"], line["state"])
                for line in read_records(tmp_path / "ledger.jsonl")
                if line["key"] != "a1/create_model"
            ]

        yield server, client, operations, calls
        ledger.close()
        await client.close()


def slowly_built(client, monkeypatch, seconds):
    build = type(client).forward_backward

    def slow(self, *args):
        time.sleep(seconds)
        return build(self, *args)

    monkeypatch.setattr(type(client), "forward_backward", slow)


def sent(server):
    return [
        (request.endpoint, request.body["seq_id"])
        for request in server.requests()
        if request.endpoint in ("forward_backward", "optim_step", "save_weights")
    ]


async def test_a_call_that_takes_long_to_build_keeps_its_place(world, monkeypatch):
    server, client, operations, calls = world
    slowly_built(client, monkeypatch, 0.05)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticker = asyncio.create_task(tick())
    await asyncio.gather(
        operations.forward_backward([datum()], LOSS),
        operations.optim_step(ADAM),
        operations.forward_backward([datum()], LOSS),
        operations.save_state("s"),
    )
    ticker.cancel()
    assert ticks > 8
    expected = ["forward_backward", "optim_step", "forward_backward", "save_weights"]
    assert sent(server) == [(name, seq) for seq, name in enumerate(expected, start=1)]
    keys = [key for key, state in calls() if state == "intent"]
    assert keys == ["a1/forward_backward/1", "a1/optim_step/2", "a1/forward_backward/3",
                    "a1/save_state/4"]  # fmt: skip
    assert [state for _, state in calls()] == ["intent", "accepted", "done"] * 4


async def test_one_cancelled_while_it_is_built_leaves_no_gap(world, monkeypatch):
    server, client, operations, calls = world
    slowly_built(client, monkeypatch, 0.1)
    building = asyncio.create_task(operations.forward_backward([datum()], LOSS))
    await asyncio.sleep(0.03)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    await operations.optim_step(ADAM)
    await asyncio.sleep(0.1)
    assert sent(server) == [("optim_step", 1)]
    assert calls()[0] == ("a1/optim_step/1", "intent")


async def test_one_turned_down_leaves_no_gap(world):
    server, _, operations, _ = world
    bad = replace(datum(), tokens=np.array([1, 336, 1001], dtype=np.int32))
    with pytest.raises(TrainingError, match="nothing was sent"):
        await operations.forward_backward([bad], LOSS)
    await operations.forward_backward([datum()], LOSS)
    assert sent(server) == [("forward_backward", 1)]


async def test_a_stop_does_not_wait_for_a_call_that_nobody_may_send(world):
    server, client, operations, calls = world
    server.faults.add("optim_step", faults.status(429, {"detail": "slow down"}, retry_after=60))
    stepping = asyncio.create_task(operations.optim_step(ADAM))
    await until(lambda: client.strain.waits)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    assert calls() == [("a1/optim_step/1", "intent"), ("a1/optim_step/1", "refused")]
    assert server.applied("optim_step") == 0
    await operations.unload_model()
    assert server.applied("unload_model") == 1


async def test_nor_for_a_model_that_it_does_not_need_any_more(world, tmp_path):
    server, client, _, _ = world
    resources = RolloutResources(patience=20.0)
    ledger = Ledger(tmp_path / "second.jsonl")
    operations = Operations(client, ledger, attempt=2, vocab=1000)
    server.faults.add("create_model", faults.status(429, {"detail": "slow down"}, retry_after=60))

    async def borrow():
        async with resources.scope("run") as scope:
            await scope.borrow(operations.server_model(SPEC))

    borrowing = asyncio.create_task(borrow())
    await until(lambda: client.strain.waits)
    borrowing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await borrowing
    ledger.close()
    states = [line["state"] for line in read_records(tmp_path / "second.jsonl")]
    assert states == ["intent", "refused"]
    assert resources.live == ()


async def test_a_call_that_finds_no_connection_before_the_stop_is_over_was_not_sent(
    world, monkeypatch
):
    server, _, operations, calls = world
    assert transport.CONNECT_SECONDS < training.PATIENCE
    monkeypatch.setattr("mtrl_cli.servers.transport.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("mtrl_cli.training.operations.PATIENCE", 1.5)
    port = int(server.url.rsplit(":", 1)[1])
    await server.stop()
    with socket.create_server(("127.0.0.1", port), backlog=0) as deaf, ExitStack() as filled:
        for _ in range(3):  # what it does not accept fills its queue, and the next ones wait
            one = filled.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        stepping = asyncio.create_task(operations.optim_step(ADAM))
        await until(lambda: calls())
        await asyncio.sleep(0.05)
        stepping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stepping
    await server.start(port)
    assert calls() == [("a1/optim_step/1", "intent"), ("a1/optim_step/1", "refused")]


async def test_a_call_whose_reply_was_lost_goes_on_after_a_stop(world):
    server, _, operations, calls = world
    server.faults.add("optim_step", faults.drop_reply(), times=2)
    stepping = asyncio.create_task(operations.optim_step(ADAM))
    await until(lambda: server.applied("optim_step"))
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    assert calls() == [("a1/optim_step/1", state) for state in ("intent", "accepted", "done")]
    assert server.applied("optim_step") == 1


async def test_a_large_reply_is_read_in_pieces():
    row = b'{"logprobs":{"data":[%b]}}' % b",".join([b"-0.123456789"] * 20_000)
    body = b'{"loss_fn_outputs":[%b]}' % b",".join([row] * 60)
    longest = 0.0

    async def tick():
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)

    ticker = asyncio.create_task(tick())
    began = time.monotonic()
    answer = await parse_aside(body)
    took = time.monotonic() - began
    ticker.cancel()
    assert answer == parse(body)
    assert longest < took / 2


async def test_a_model_is_given_back_after_a_rate_limit_longer_than_a_scopes_patience(
    world, tmp_path
):
    server, client, _, _ = world
    resources = RolloutResources(patience=0.1)
    with closing(Ledger(tmp_path / "second.jsonl")) as ledger:
        operations = Operations(client, ledger, attempt=2, vocab=1000)
        server.faults.add("unload_model", faults.status(429, {"detail": "slow"}, retry_after=0.3))
        async with resources.scope("run") as scope:
            await scope.borrow(operations.server_model(SPEC))
    assert await resources.close() == ()
    assert len(server.requests("unload_model")) == 2
    assert server.applied("unload_model") == 1
    states = [line["state"] for line in read_records(tmp_path / "second.jsonl")]
    assert states[-3:] == ["intent", "accepted", "done"]


async def test_one_that_lasts_longer_than_a_return_may_take_is_a_refusal_in_its_words(
    world, tmp_path
):
    server, client, _, _ = world
    resources = RolloutResources(patience=0.1)
    with closing(Ledger(tmp_path / "second.jsonl")) as ledger:
        operations = Operations(client, ledger, attempt=2, vocab=1000)
        server.faults.add("unload_model", faults.status(429, {"detail": "slow"}, retry_after=25))
        async with resources.scope("run") as scope:
            await scope.borrow(operations.server_model(SPEC))
    [left] = await resources.close()
    assert "unload_model was not executed" in left.reason
    assert "slow" in left.reason
    states = [line["state"] for line in read_records(tmp_path / "second.jsonl")]
    assert states[-2:] == ["intent", "refused"]


@pytest.mark.parametrize("fault", [faults.drop_reply(), faults.hang()], ids=["lost", "hangs"])
@pytest.mark.parametrize("kind", ["publish", "save_state"])
async def test_a_save_that_is_given_up_after_a_stop_is_looked_up(world, monkeypatch, kind, fault):
    server, _, operations, calls = world
    monkeypatch.setattr("mtrl_cli.training.operations.PATIENCE", 0.3)
    endpoint = ENDPOINTS[kind]
    server.faults.add(endpoint, fault, times=-1)
    saving = asyncio.create_task(getattr(operations, kind)("s"))
    await until(lambda: server.applied(endpoint))
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert calls() == [(f"a1/{kind}/1", "intent"), (f"a1/{kind}/1", "done")]
    assert server.applied(endpoint) == 1
