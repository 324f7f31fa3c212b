"""CPU that one turn costs the client: mtrl's transport beside the ordinary ways to make a request.

A turn is what the Tinker API makes of it: POST `asample` with the whole context, then POST
`retrieve_future` for the result; "one reply" is a server that honours `Prefer: wait`. A stub in a
process of its own answers each after 50 ms, so that the figure is the client's own CPU: user and
system time of this process, all threads, over the turns made. The peers encode the context with
`json=` and parse the replies, as people do.

    python -m benchmarks.http_turn [--turns N] [--rounds R] [--tokens N …] [--in-flight N …]
        [--json FILE]

Absolute figures are those of the machine and of what else runs on it (the load is printed); the
ratios of one run are what counts. Rounds are interleaved over the clients and the best one stands.
"""

import argparse
import array
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import httpx
import httpx_aiohttp
from aiohttp import web

from benchmarks.facts import load, write
from mtrl_cli.rollout.ports import SampleRequest, SamplingParams
from mtrl_cli.servers.interface import Capabilities
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.servers.transport import Address

TOKENS = (256, 4096, 16_384)
IN_FLIGHT = (64, 256, 1024)
VOCABULARY = 150_000
DELAY = 0.05
SAMPLED = 40
WAITING = "waiting"
"""To this key the stub answers `asample` with the result, as `Prefer: wait` asks for."""

Turn = Callable[[int], Awaitable[None]]
Client = Callable[[str, int, "array.array[int]"], contextlib.AbstractAsyncContextManager[Turn]]

CAPABILITIES = Capabilities("immutable", True, True, True, True)


# --- the server -----------------------------------------------------------------------------


def serve() -> None:
    """Run the stub until it is killed; print its port first."""
    sample = {
        "sequences": [
            {
                "stop_reason": "stop",
                "tokens": [3 * i for i in range(SAMPLED)],
                "logprobs": [-0.012345678 * i for i in range(SAMPLED)],
            }
        ],
        "weights": "tinker://model/sampler_weights/step-000001",
    }
    answers = {
        "create_session": {"session_id": "s"},
        "create_sampling_session": {"sampling_session_id": "w"},
        "session_heartbeat": {},
        "asample": {"request_id": "123", "future_id": "123", "status": "pending"},
        "retrieve_future": sample,
    }
    bodies = {name: json.dumps(answer).encode() for name, answer in answers.items()}

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        name = request.match_info["name"]
        body = bodies.get(name)
        if body is None:
            raise web.HTTPNotFound
        if name in ("asample", "retrieve_future"):
            await asyncio.sleep(DELAY)
        if name == "asample" and request.headers.get("X-API-Key") == WAITING:
            body = bodies["retrieve_future"]
        return web.Response(body=body, content_type="application/json")

    async def run() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/api/v1/{name}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


# --- the clients ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def mtrl(
    url: str, in_flight: int, tokens: "array.array[int]", key: str = "k"
) -> AsyncIterator[Turn]:
    client = TinkerService(Address.of(url, key), "m", CAPABILITIES, connections=in_flight)
    await client.connect()
    try:

        async def turn(index: int) -> None:
            await client.sample(SampleRequest("p", tokens, 64, (2,), index, SamplingParams()))

        yield turn
    finally:
        await client.close()


def body_of(tokens: list[int], index: int) -> dict[str, object]:
    return {
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
        "sampling_params": {"max_tokens": 64, "seed": index, "stop": [2], "temperature": 1.0},
        "sampling_session_id": "w",
        "seq_id": index,
    }


@contextlib.asynccontextmanager
async def plain_aiohttp(
    url: str, in_flight: int, tokens: "array.array[int]"
) -> AsyncIterator[Turn]:
    listed = tokens.tolist()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight)) as session:

        async def post(path: str, body: dict[str, object]) -> None:
            async with session.post(f"{url}/api/v1/{path}", json=body) as reply:
                await reply.json()

        async def turn(index: int) -> None:
            await post("asample", body_of(listed, index))
            await post("retrieve_future", {"request_id": "123"})

        yield turn


async def httpx_turns(client: httpx.AsyncClient, tokens: "array.array[int]") -> AsyncIterator[Turn]:
    listed = tokens.tolist()
    async with client:

        async def turn(index: int) -> None:
            (await client.post("asample", json=body_of(listed, index))).json()
            (await client.post("retrieve_future", json={"request_id": "123"})).json()

        yield turn


@contextlib.asynccontextmanager
async def httpx_over_aiohttp(
    url: str, in_flight: int, tokens: "array.array[int]"
) -> AsyncIterator[Turn]:
    connector = aiohttp.TCPConnector(limit=in_flight)
    transport = httpx_aiohttp.AiohttpTransport(client=aiohttp.ClientSession(connector=connector))
    client = httpx.AsyncClient(transport=transport, base_url=f"{url}/api/v1/", timeout=120)
    async for turn in httpx_turns(client, tokens):
        yield turn


@contextlib.asynccontextmanager
async def plain_httpx(url: str, in_flight: int, tokens: "array.array[int]") -> AsyncIterator[Turn]:
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    client = httpx.AsyncClient(
        base_url=f"{url}/api/v1/", limits=limits, timeout=120, trust_env=False
    )
    async for turn in httpx_turns(client, tokens):
        yield turn


# name, client, the share of --turns that it makes: httpx is too slow for all of them
CLIENTS: tuple[tuple[str, Client, float], ...] = (
    ("mtrl", mtrl, 1.0),
    ("mtrl, one reply", partial(mtrl, key=WAITING), 1.0),
    ("aiohttp", plain_aiohttp, 1.0),
    ("httpx over aiohttp", httpx_over_aiohttp, 1.0),
    ("httpx", plain_httpx, 0.1),
)


# --- measuring ------------------------------------------------------------------------------


async def cpu_per_turn(
    client: Client, url: str, in_flight: int, tokens: "array.array[int]", turns: int
) -> float:
    """Seconds of CPU per turn, connections already open."""

    async def play(count: int) -> None:
        indices = iter(range(count))

        async def worker() -> None:
            for index in indices:
                await turn(index)

        await asyncio.gather(*(worker() for _ in range(in_flight)))

    async with client(url, in_flight, tokens) as turn:
        await play(in_flight)
        before = time.process_time()
        await play(turns)
        return (time.process_time() - before) / turns


def measure(
    url: str, tokens: int, in_flight: int, turns: int, rounds: int, clients: Sequence[str]
) -> dict[str, float]:
    """Microseconds of CPU a turn of each client, in turns; the best round."""
    prompt = array.array("i", random.choices(range(VOCABULARY), k=tokens))
    best = dict.fromkeys(clients, float("inf"))
    for _ in range(rounds):
        for name, client, share in CLIENTS:
            if name in best:
                played = max(in_flight, round(turns * share))
                cost = asyncio.run(cpu_per_turn(client, url, in_flight, prompt, played))
                best[name] = min(best[name], 1e6 * cost)
    return best


@contextlib.contextmanager
def stub() -> Iterator[str]:
    """The stub in a process of its own; its URL."""
    command = [sys.executable, "-m", "benchmarks.http_turn", "--serve"]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU that one turn costs the client.")
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--in-flight", type=int, nargs="+", default=IN_FLIGHT)
    names = [name for name, _, _ in CLIENTS]
    parser.add_argument("--clients", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    rows: list[dict[str, object]] = []
    print(f"{'tokens':>6} {'in flight':>9} {'client':>20} {'µs a turn':>10} {'ratio':>7}")
    with stub() as url:
        for tokens in asked.tokens:
            for in_flight in asked.in_flight:
                found = measure(url, tokens, in_flight, asked.turns, asked.rounds, asked.clients)
                for name, cost in found.items():
                    ratio = cost / found[asked.clients[0]]
                    print(f"{tokens:6} {in_flight:9} {name:>20} {cost:10.0f} {ratio:7.1f}")
                print(f"  load {load()}", flush=True)
                rows.append({"tokens": tokens, "in_flight": in_flight, "us_a_turn": found})
    write(asked.json, "http_turn", rows)


if __name__ == "__main__":
    main()
