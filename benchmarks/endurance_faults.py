"""The services of the endurance run, in one process: 1 % of their operations meet a fault.

    python -m benchmarks.endurance_faults STORE

The embedded policy server stands behind a proxy that loses, delays and breaks its replies; the E2B
emulator has faults of the same kinds. What it prints first is where they are, as one line of JSON;
it serves until its stdin ends, and then prints what it has counted.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.endurance_program import SHARE
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from mtrl_cli.testing.e2b_emulator.wire import break_connection
from mtrl_cli.testing.faults import Fault, FaultPlan

_BUSY = faults.status(429, {"detail": "slow down"}, retry_after=0.2)
_LOST = (faults.drop_reply(), faults.drop_request(), faults.cut(20))
_READING = (*_LOST, _BUSY, faults.status(500, "<html>oops"), faults.late(1.0))
_TRAINING = (*_LOST, _BUSY)

SERVER: Mapping[str, Sequence[Fault]] = {
    "asample": (*_READING, Fault("body", executes=True, body=b"short"),
                Fault("body", executes=True, body=b"nan")),
    "retrieve_future": _READING,
    "create_sampling_session": _READING,
    "session_heartbeat": _READING,
    "forward_backward": _TRAINING,
    "optim_step": _TRAINING,
    "save_weights_for_sampler": _TRAINING,
    "save_weights": _TRAINING,
}  # fmt: skip

_GONE = faults.vanish()
_E2B_BUSY = faults.status(429, {"code": 429, "message": "slow"}, retry_after=0.3)
_E2B_DOWN = faults.status(503, "<html>down", headers={"Content-Type": "text/html"})
_E2B_LATE = faults.status(504, {"code": 504, "message": "late"}, executes=True)

SANDBOXES: Mapping[str, Sequence[Fault]] = {
    "create": (faults.drop_reply(), faults.reset(), _E2B_LATE, _E2B_BUSY, _E2B_DOWN,
               faults.hide(0.5)),
    "list": (_E2B_DOWN,),
    "write": (_GONE, faults.reset()),
    "start": (_GONE, faults.reset()),
    "send_input": (_GONE, faults.reset(), faults.drop_request()),
    "output": (faults.reset(),),
    "kill": (faults.reset(), faults.drop_reply(), faults.late(0.5), _E2B_DOWN),
}  # fmt: skip


class RandomFaults(FaultPlan):
    """Every operation meets a fault with the same probability, of a kind that is drawn evenly."""

    def __init__(self, table: Mapping[str, Sequence[Fault]], seed: int) -> None:
        super().__init__()
        self._table, self._draw = table, random.Random(seed)
        self.operations: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()

    def next(self, endpoint: str, body: Mapping[str, Any]) -> Fault | None:
        self.operations[endpoint] += 1
        kinds = self._table.get(endpoint)
        if not kinds or self._draw.random() >= SHARE:
            return None
        fault = self._draw.choice(kinds)
        if fault.kind == "body" and body.get("prompt_logprobs"):
            return None
        self.met += 1
        self.counted[endpoint] += 1
        return fault


class FaultyProxy:
    """Forwards the Tinker API to ``server``, under faults."""

    def __init__(self, server: EmbeddedServer, plan: FaultPlan) -> None:
        self._server, self._faults = server, plan
        self.url = ""

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        endpoint, raw = request.path.rpartition("/")[2], await request.read()
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:  # protobuf
            body = {}
        fault = self._faults.next(endpoint, body)
        if fault is None:
            return await self._forward(request, raw)
        reply = await self._forward(request, raw) if fault.executes else None
        match fault.kind:
            case "drop":
                break_connection(request, reset=False)
            case "status":
                return web.Response(status=fault.status, body=fault.body, headers=fault.headers)
            case "late":
                await asyncio.sleep(fault.seconds)
                return await self._forward(request, raw)
            case "cut":
                assert reply is not None
                return await _cut(request, reply, fault.status)
            case "body":
                assert reply is not None
                return _without_a_logprob(reply, fault.body)
        return web.Response(status=500)

    async def _forward(self, request: web.Request, raw: bytes) -> web.Response:
        kept = ("accept", "content-type", "prefer", "x-api-key", "authorization")
        headers = {name: value for name, value in request.headers.items() if name.lower() in kept}
        target = f"{self._server.url}{request.path_qs}"
        async with self._session.request(
            request.method, target, data=raw or None, headers=headers
        ) as answer:
            content = await answer.read()
            named = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            return web.Response(status=answer.status, body=content, headers=named)


async def _cut(request: web.Request, reply: web.Response, after: int) -> web.StreamResponse:
    assert isinstance(reply.body, bytes)
    broken = web.StreamResponse(status=reply.status, headers={**reply.headers})
    broken.content_length = len(reply.body)
    await broken.prepare(request)
    await broken.write(reply.body[:after])
    break_connection(request, reset=False)
    return broken


def _without_a_logprob(reply: web.Response, how: bytes) -> web.Response:
    """A sample that lacks a logprob, or has one that is no number; anything else as it is."""
    assert isinstance(reply.body, bytes)
    try:
        content = json.loads(reply.body)
        logprobs = content["sequences"][0]["logprobs"]
    except (ValueError, KeyError, IndexError, TypeError):
        return reply
    if how == b"short":
        logprobs.pop()
    else:
        logprobs[0] = float("nan")
    return web.Response(body=json.dumps(content).encode(), content_type="application/json")


async def _serve(store: Path) -> None:
    server = EmbeddedServer(store)
    server.start()
    served, sandboxes = RandomFaults(SERVER, 1), RandomFaults(SANDBOXES, 2)
    proxy, emulator = FaultyProxy(server, served), E2BEmulator(remembers=False)
    emulator.faults = sandboxes
    await proxy.start()
    try:
        async with emulator:
            told = {"server": proxy.url, "key": server.api_key, "pid": server.info["pid"]}
            print(json.dumps({**told, "environ": emulator.environ()}), flush=True)
            await asyncio.to_thread(sys.stdin.read)
            counted = {"live": len(emulator.live), **emulator.counts()}
    finally:
        await proxy.stop()
        server.stop()
    kinds = {"server": served, "sandboxes": sandboxes}
    faults_met = {
        name: {"operations": plan.operations.total(), "faults": plan.counted.total(),
               "by_operation": dict(plan.counted)}
        for name, plan in kinds.items()
    }  # fmt: skip
    print(json.dumps({"sandboxes": counted, "met": faults_met}), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
