"""A server that speaks OpenEnv's ``/ws`` protocol as each test tells it to, on loopback."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

Handler = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's side of one connection."""

    def __init__(self, socket: web.WebSocketResponse, number: int) -> None:
        self.socket = socket
        self.number = number
        """Of the connection, from 1."""

    async def ask(self) -> dict[str, Any]:
        """The next request; ``{"type": "gone"}`` when the client has ended the connection."""
        message = await self.socket.receive()
        if message.type is not WSMsgType.TEXT:
            return {"type": "gone"}
        return dict(json.loads(message.data))

    async def answer(self, kind: str, **data: Any) -> None:
        await self.socket.send_str(json.dumps({"type": kind, "data": data}))

    async def observe(self, text: str, reward: Any = None, done: bool = False) -> None:
        await self.answer("observation", observation={"text": text}, reward=reward, done=done)

    async def error(self, code: str, message: str = "why", **more: Any) -> None:
        await self.answer("error", code=code, message=message, **more)


class WireServer:
    """Counts its connections; ``live`` are those whose handler has not ended."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.live = 0
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def accept(self, request: web.Request) -> web.StreamResponse:
        self.connections += 1
        self.live += 1
        self.headers.append(dict(request.headers))
        socket = web.WebSocketResponse()
        try:
            await socket.prepare(request)
            await self.handler(Peer(socket, self.connections))
            await socket.close()
        finally:
            self.live -= 1
        return socket

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": {}, "observation": {}})


async def playing(peer: Peer) -> None:
    """A session of a server in good order: every step is answered by its name."""
    steps = 0
    while True:
        request = await peer.ask()
        match request["type"]:
            case "state":
                await peer.answer("state", step_count=steps)
            case "reset":
                await peer.observe(f"reset {request['data'].get('seed')}")
            case "step":
                steps += 1
                do = request["data"].get("do")
                await peer.observe(f"{do} {steps}", 0.5, done=do == "end")
            case _:
                return


@asynccontextmanager
async def serving(handler: Handler = playing) -> AsyncIterator[WireServer]:
    server = WireServer(handler)
    app = web.Application()
    app.router.add_get("/ws", server.accept)
    app.router.add_get("/schema", server.schema)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
