"""The pooled connections, against bytes."""

import asyncio
import contextlib

import pytest

from mtrl_cli.servers.pool import NoReply, Pool, Reply

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@contextlib.asynccontextmanager
async def serving(*replies, **options):
    """A server that answers the n-th request with the n-th reply, in the pieces given.

    A piece is bytes, a pause in seconds, or None to close. Yields the pool and what arrived.
    """
    arrived, connections, tasks = [], [], set()
    script = list(replies)

    async def handle(reader, writer):
        connections.append(writer)
        tasks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                arrived.append((head, await reader.readexactly(length)))
                for piece in script.pop(0):
                    if piece is None:
                        writer.close()
                        return
                    if isinstance(piece, bytes):
                        writer.write(piece)
                        await writer.drain()
                    else:
                        await asyncio.sleep(piece)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"limit": 8, "connect_seconds": 2.0, "keepalive_seconds": 5.0, **options}
    pool = Pool(f"http://127.0.0.1:{port}/api/v1/", {"X-API-Key": "k"}, **settings)
    try:
        yield pool, arrived, connections
    finally:
        await pool.close()
        server.close()
        for writer in connections:
            writer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def test_what_is_sent():
    async with serving([OK]) as (pool, arrived, _):
        reply = await pool.post("asample", b'{"a":1}', 2.0, {"Prefer": "wait=30"})
    assert reply == Reply(200, b"hi")
    head, body = arrived[0]
    assert body == b'{"a":1}'
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /api/v1/asample HTTP/1.1"
    assert lines[1].startswith("Host: 127.0.0.1:")
    assert lines[2:5] == ["X-API-Key: k", "Prefer: wait=30", "Content-Length: 7"]


@pytest.mark.parametrize(
    ("pieces", "reply", "reused"),
    [
        ([OK], Reply(200, b"hi"), True),
        ([OK[i : i + 1] for i in range(len(OK))], Reply(200, b"hi"), True),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], Reply(204, b""), True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], Reply(200, b"hi"), True),
        ([b"HTTP/1.1 429 x\r\nRETRY-AFTER:  3 \r\ncontent-length: 0\r\n\r\n"],
         Reply(429, b"", "3"), True),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
          b"2;x=y\r\nhi\r", b"\n1\r\n!\r\n0\r\n", b"\r\n"], Reply(200, b"hi!"), True),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
          b"2\r\nhi\r\n0\r\nTrailer: x\r\n\r\n"], Reply(200, b"hi"), True),
        ([b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"],
         Reply(200, b"hi"), False),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"], Reply(200, b"hi"), False),
        ([b"HTTP/1.1 200 OK\r\n\r\nhi", 0.02, b"!", None], Reply(200, b"hi!"), False),
        ([OK + OK], Reply(200, b"hi"), False),
        ([OK + b"x"], Reply(200, b"hi"), False),
    ],
)  # fmt: skip
async def test_replies(pieces, reply, reused):
    async with serving(pieces, [OK]) as (pool, _, connections):
        assert await pool.post("x", b"", 2.0) == reply
        assert await pool.post("x", b"", 2.0) == Reply(200, b"hi")
        assert len(connections) == (1 if reused else 2)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([None], "closed before the reply"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le", None], "closed before the reply"),
        ([OK[:-1], None], "broke off"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi", None], "broke off"),
        ([b"SSH-2.0-x\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 abc OK\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n"], "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "not HTTP"),
        ([b"x" * 70_000], "not HTTP"),
        ([0.6], "no reply in time"),
        ([OK[:-1], 0.6], "no reply in time"),
    ],
)
async def test_no_reply(pieces, says):
    async with serving(pieces, [OK]) as (pool, _, connections):
        with pytest.raises(NoReply, match=says) as caught:
            await pool.post("x", b"", 0.3)
        assert caught.value.verdict.outcome == "unknown"
        assert await pool.post("x", b"", 2.0) == Reply(200, b"hi")
        assert len(connections) == 2


async def test_a_stray_reply_never_answers_the_next_call():
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
    async with serving([OK, 0.05, stray], [OK]) as (pool, _, connections):
        assert (await pool.post("x", b"", 2.0)).body == b"hi"
        await asyncio.sleep(0.15)
        assert (await pool.post("x", b"", 2.0)).body == b"hi"
        assert len(connections) == 2


async def test_an_idle_connection_is_trusted_for_a_while_only():
    async with serving([OK], [OK], keepalive_seconds=0.05) as (pool, _, connections):
        await pool.post("x", b"", 2.0)
        await asyncio.sleep(0.1)
        await pool.post("x", b"", 2.0)
        assert len(connections) == 2


async def test_a_connection_that_the_server_closed_is_not_used():
    async with serving([OK, None], [OK]) as (pool, _, _):
        await pool.post("x", b"", 2.0)
        await asyncio.sleep(0.05)
        assert (await pool.post("x", b"", 2.0)).body == b"hi"


async def test_the_limit_holds_and_everybody_gets_a_turn():
    replies = [[0.02, OK] for _ in range(20)]
    async with serving(*replies, limit=3) as (pool, _, connections):
        done = await asyncio.gather(*(pool.post("x", b"", 5.0) for _ in range(20)))
        assert {reply.body for reply in done} == {b"hi"}
        assert len(connections) == 3


async def test_who_leaves_gives_the_place_back():
    async with serving([5.0], [OK], limit=1) as (pool, _, _):
        first = asyncio.create_task(pool.post("x", b"", 5.0))
        await asyncio.sleep(0.05)
        with pytest.raises(NoReply, match="no free connection in time") as caught:
            await pool.post("x", b"", 0.05)
        assert caught.value.verdict.outcome == "transient"
        waiting = [asyncio.create_task(pool.post("x", b"", 5.0)) for _ in range(2)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        first.cancel()
        assert (await waiting[1]).body == b"hi"
        results = await asyncio.gather(first, waiting[0], return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)


async def test_nobody_listens():
    async with serving() as (pool, _, _):
        pass
    with pytest.raises(NoReply, match="connection refused") as caught:
        await pool.post("x", b"", 2.0)
    assert caught.value.verdict.outcome == "transient"


async def test_a_large_body_arrives_whole():
    async with serving([OK]) as (pool, arrived, _):
        body = b"x" * 5_000_000
        await pool.post("x", body, 5.0)
    assert arrived[0][1] == body
