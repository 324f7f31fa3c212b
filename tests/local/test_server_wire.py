"""The HTTP protocol object: whole and torn requests, pipelines, limits, slow and gone clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from mtrl_cli.local import wire
from mtrl_cli.local.wire import Listener, Request, Response

POST = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


class Echo:
    """Answers with the body; `/wait` after a moment, `/big` with much, `/hang` never."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.seen: list[Request] = []

    def __call__(self, request: Request) -> "Response | object":
        self.seen.append(request)
        if request.target == "/wait":
            return self._wait(request)
        if request.target == "/hang":
            return self._hang()
        if request.target == "/big":
            return Response(200, b"x" * 2**20)
        return Response(200, request.body)

    async def _wait(self, request: Request) -> Response:
        await asyncio.sleep(0.02)
        return Response(200, b"later " + request.body)

    async def _hang(self) -> Response:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response(200, b"")


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Echo, Listener, Peer]]:
    echo = Echo()
    listener = Listener(echo, lambda status, reason: Response(status, reason.encode()))  # type: ignore[arg-type]
    server = await asyncio.get_running_loop().create_server(listener, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield echo, listener, (reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        server.close()
        await listener.close(0.2)
        assert listener.connections == set()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await reader.readexactly(
        int(headers.get("content-length", 0)))


async def test_one_request_and_the_next() -> None:
    async with serving() as (_, _, (reader, writer)):
        for _ in range(2):
            writer.write(POST)
            status, headers, body = await answer(reader)
            assert (status, body) == (200, b"hello")
            assert headers["content-type"] == "application/json"


async def test_byte_by_byte() -> None:
    async with serving() as (_, _, (reader, writer)):
        for byte in POST:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await answer(reader))[2] == b"hello"


async def test_a_pipeline_is_answered_in_order() -> None:
    async with serving() as (echo, _, (reader, writer)):
        wait = POST.replace(b"/echo", b"/wait")
        writer.write(wait + POST + wait + POST)
        got = [(await answer(reader))[2] for _ in range(4)]
        assert got == [b"later hello", b"hello", b"later hello", b"hello"]
        assert len(echo.seen) == 4


async def test_reading_stops_while_an_answer_is_awaited() -> None:
    async with serving() as (echo, _, (reader, writer)):
        many = 20_000
        writer.write(POST.replace(b"/echo", b"/wait") + POST * many)
        for _ in range(many + 1):
            assert (await answer(reader))[0] == 200
        assert len(echo.seen) == many + 1


async def test_a_client_that_does_not_read_stops_us_too() -> None:
    async with serving() as (echo, _, (reader, writer)):
        writer.write(b"GET /big HTTP/1.1\r\n\r\n" * 40)
        await asyncio.sleep(0.1)
        assert len(echo.seen) < 40
        for _ in range(40):
            assert len((await answer(reader))[2]) == 2**20


@pytest.mark.parametrize(("sent", "status"), [
    (b"hello\r\n\r\n", 400),
    (b"GET / HTTP/2\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nA: b\r\n folded: x\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411),
    (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000, 431),
])  # fmt: skip
async def test_trouble_is_answered_and_closed(sent: bytes, status: int) -> None:
    async with serving() as (echo, _, (reader, writer)):
        writer.write(sent)
        got, headers, _ = await answer(reader)
        assert (got, headers["connection"]) == (status, "close")
        assert echo.seen == []
        if status != 413:
            with suppress(ConnectionError):
                assert await reader.read() == b""


async def test_a_body_too_large_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BODY", 1000)
    async with serving() as (_, _, (reader, writer)):
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n")
        for _ in range(30):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert (await answer(reader))[0] == 413
        assert await reader.read() == b""


async def test_continue_and_close() -> None:
    async with serving() as (_, _, (reader, writer)):
        head, body = POST.split(b"\r\n\r\n")
        writer.write(head + b"\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        status, headers, got = await answer(reader)
        assert (status, headers["connection"], got) == (200, "close", b"hello")
        assert await reader.read() == b""


async def test_a_gone_client_cancels_its_wait() -> None:
    async with serving() as (echo, listener, (_, writer)):
        writer.write(b"GET /hang HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        assert echo.cancelled == 1
        assert listener.connections == set()


async def test_closing_lets_an_answer_finish_and_cuts_the_rest() -> None:
    async with serving() as (echo, listener, (reader, writer)):
        writer.write(POST.replace(b"/echo", b"/wait"))
        await asyncio.sleep(0.01)
        await listener.close(1)
        assert (await answer(reader))[2] == b"later hello"
        assert await reader.read() == b""
    async with serving() as (echo, listener, (reader, writer)):
        writer.write(b"GET /hang HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        await listener.close(0.05)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        assert echo.cancelled == 1


async def test_an_idle_connection_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (_, listener, (reader, writer)):
        writer.write(POST)
        await answer(reader)
        listener.drop_idle()
        assert len(listener.connections) == 1
        monkeypatch.setattr(wire, "IDLE", -1.0)
        listener.drop_idle()
        with suppress(ConnectionError):
            assert await reader.read() == b""


async def test_heads_seen_before_are_read_the_same() -> None:
    async with serving() as (echo, listener, (reader, writer)):
        for number in range(wire.MAX_HEADS + 10):
            target = f"/{number % (wire.MAX_HEADS + 5)}"
            body = target.encode() * (1 + number % 3)
            head = f"POST {target} HTTP/1.1\r\nContent-Length: {len(body)}\r\nX: y\r\n\r\n"
            writer.write(head.encode() + body)
            assert (await answer(reader))[2] == body
            assert echo.seen[-1].target == target
        assert len(listener.heads) <= wire.MAX_HEADS
