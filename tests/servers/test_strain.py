"""A service whose calls wait says why, for as long as they do."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mtrl_cli.rollout.ports import Sample
from mtrl_cli.servers.strain import LONGER, Strain
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .calls import Trained, turn
from .twinkle_kit import connected

PAUSED = {
    "type": "try_again",
    "queue_state": "paused_capacity",
    "queue_state_reason": "no GPU is free",
}

FULL = faults.status(503, {"detail": "the queue is full"})
SLOW = faults.status(429, {"detail": "slow down"}, retry_after=0.2)
AWAY = faults.status(502, "upstream is away")

WAITS = {
    "overloaded": ("asample", FULL, 1, "the queue is full"),
    "too many": ("asample", SLOW, 1, "slow down"),
    "polls fail": ("retrieve_future", AWAY, 0, "upstream is away"),
    "paused": ("retrieve_future", faults.body(PAUSED), 0, "says paused_capacity: no GPU is free"),
}


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def _seen_while(client: Any, work: "asyncio.Task[Sample]") -> list[Strain]:
    seen = []
    while not work.done():
        if client.strain not in seen:
            seen.append(client.strain)
        await asyncio.sleep(0.002)
    await work
    return seen


@pytest.mark.parametrize("case", WAITS)
async def test_what_calls_wait_for_is_told_until_it_is_over(connect: Any, case: str) -> None:
    endpoint, fault, again, words = WAITS[case]
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        policy = await client.base_policy()
        assert client.strain == Strain(0, None)
        gate = faults.Gate()
        server.faults.add(endpoint, fault, times=1)
        server.faults.add(endpoint, faults.hold(gate, executes=False), times=1)
        work = asyncio.ensure_future(client.sample(turn(policy)))
        await until(lambda: gate.arrived)
        held = client.strain
        assert held.reissued == again
        assert held.waits is not None
        assert words in held.waits
        gate.open()
        await work
        await until(lambda: client.strain.waits is None)  # of a limit others may still wait
        assert client.strain.reissued == again


async def test_a_limit_is_told_as_long_as_it_holds_whatever_else_is_answered(connect: Any) -> None:
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        policy = await client.base_policy()
        gate = faults.Gate()
        server.faults.add("asample", faults.hold(gate), times=1)
        first = asyncio.ensure_future(client.sample(turn(policy)))
        await until(lambda: gate.arrived)
        slow = faults.status(429, {"detail": "slow down"}, retry_after=30)
        server.faults.add("asample", slow, times=1)
        second = asyncio.ensure_future(client.sample(turn(policy)))
        await until(lambda: client.strain.waits)
        gate.open()
        await asyncio.sleep(0.1)  # the first one's reply is taken
        assert client.strain.waits is not None
        assert "slow down" in client.strain.waits
        for work in (first, second):
            work.cancel()
        await asyncio.wait({first, second})


async def test_a_cause_that_nobody_meets_again_is_forgotten(monkeypatch: Any, connect: Any) -> None:
    monkeypatch.setattr("mtrl_cli.servers.strain.LONGER", 0.05)
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        policy = await client.base_policy()
        server.faults.add("asample", faults.status(503, {"detail": "full"}), times=-1)
        work = asyncio.ensure_future(client.sample(turn(policy)))
        await until(lambda: client.strain.waits)
        work.cancel()
        await asyncio.wait({work})
        await asyncio.sleep(0.3)  # a pause is at most 0.1 s here
        assert client.strain.waits is None
    assert LONGER == 10.0


async def test_twinkles_calls_are_told_too(monkeypatch: Any) -> None:
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.05)
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        policy = await client.base_policy()
        away = faults.status(503, {"detail": "no replica"})
        server.faults.add("sampler/scripted/twinkle/sample", away, times=2)
        seen = await _seen_while(client, asyncio.ensure_future(client.sample(turn(policy))))
        assert any("no replica" in (strain.waits or "") for strain in seen)
        assert client.strain == Strain(2, None)


async def test_what_is_held_is_given_back_while_nobody_may_send(connect: Any) -> None:
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        trained = await Trained(client).prepare("unload_model")
        server.faults.add(
            "asample", faults.status(429, {"detail": "slow"}, retry_after=60), times=1
        )
        work = asyncio.ensure_future(client.sample(turn(await client.base_policy())))
        await until(lambda: client.strain.waits)
        async with asyncio.timeout(20):
            await trained.execute("unload_model")
        assert server.applied("unload_model") == 1
        work.cancel()
        await asyncio.wait({work})


async def test_a_wait_is_told_although_others_are_answered(connect: Any) -> None:
    async with ScriptedPolicyServer() as server:
        client = await connect(server, sample_timeout=60)
        policy = await client.base_policy()
        full = faults.status(503, {"detail": "the queue is full"}, retry_after=30)
        server.faults.add("asample", full, times=1)
        work = asyncio.ensure_future(client.sample(turn(policy)))
        await until(lambda: client.strain.waits)
        await client.sample(turn(policy))
        assert "the queue is full" in (client.strain.waits or "")
        work.cancel()
        await asyncio.wait({work})
