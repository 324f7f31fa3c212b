"""The pooled door of the transport: what goes out, when a connection is used again, the limits."""

import asyncio
import contextlib
import gc
import gzip
import socket
import struct
import threading
import time

import pytest

from mtrl_cli.servers import transport
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.transport import NoReply, Reply, Transport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
ENDS = (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError)
STRAY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"


@contextlib.asynccontextmanager
async def serving(*replies, limit=8):
    """A server that answers the n-th request with the n-th reply, in the pieces given.

    A piece is bytes, a pause in seconds, or None to close. Yields the transport, what arrived,
    and the connections made.
    """
    arrived, connections, tasks = [], [], set()
    script = list(replies)

    async def handle(reader, writer):
        connections.append(writer)
        tasks.add(asyncio.current_task())
        with contextlib.suppress(*ENDS):
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
    door = Transport(Address.of(f"http://127.0.0.1:{port}", "k"), limit)
    await door.open()
    try:
        yield door, arrived, connections
    finally:
        await door.close()
        server.close()
        for writer in connections:
            writer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def test_what_is_sent():
    async with serving([OK]) as (door, arrived, _):
        reply = await door.pooled("asample", b'{"a":1}', 2.0, {"Prefer": "wait=30"})
    assert reply == Reply(200, b"hi")
    head, body = arrived[0]
    assert body == b'{"a":1}'
    first, *lines = head.decode().strip().split("\r\n")
    assert first == "POST /api/v1/asample HTTP/1.1"
    headers = dict(line.split(": ") for line in lines)
    assert headers.pop("Host").startswith("127.0.0.1:")
    assert headers == {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Length": "7",
        "Content-Type": "application/json",
        "Prefer": "wait=30",
        "User-Agent": "mtrl",
        "X-API-Key": "k",
    }


async def test_a_large_body_arrives_whole_and_with_its_length():
    async with serving([OK]) as (door, arrived, _):
        body = b"x" * 5_000_000
        await door.pooled("x", body, 5.0)
    assert arrived[0][1] == body


async def test_the_wish_to_wait_is_handed_on():
    refused = b"HTTP/1.1 429 x\r\nRETRY-AFTER:  3 \r\ncontent-length: 0\r\n\r\n"
    async with serving([refused]) as (door, _, _):
        assert await door.pooled("x", b"", 2.0) == Reply(429, b"", "3")


async def test_a_redirect_is_not_followed():
    moved = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with serving([moved]) as (door, arrived, _):
        assert (await door.pooled("x", b"", 2.0)).status == 302
        assert len(arrived) == 1


@pytest.mark.parametrize(
    ("pieces", "reused"),
    [
        ([OK], True),
        ([OK[:20], OK[20:]], True),
        ([b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"], False),
        ([b"HTTP/1.1 200 OK\r\n\r\nhi", 0.02, None], False),
        ([OK + STRAY], False),
    ],
    ids=["whole", "in pieces", "close", "until the end", "two at once"],
)
async def test_a_connection_is_used_again(pieces, reused):
    async with serving(pieces, [OK]) as (door, _, connections):
        for _ in range(2):
            assert await door.pooled("x", b"", 2.0) == Reply(200, b"hi")
        assert len(connections) == (1 if reused else 2)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([None], "closed before the reply"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le", None], "closed before the reply"),
        ([OK[:-1], None], "broke off"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi", None], "broke off"),
        ([b"SSH-2.0-x\r\n\r\n"], "not HTTP"),
        ([0.4], "no reply in time"),
        ([OK[:-1], 0.4], "no reply in time"),
    ],
)
async def test_no_reply(pieces, says):
    async with serving(pieces, [OK]) as (door, _, connections):
        with pytest.raises(NoReply, match=says) as caught:
            await door.pooled("x", b"", 0.2)
        assert caught.value.verdict.outcome == "unknown"
        assert await door.pooled("x", b"", 2.0) == Reply(200, b"hi")
        assert len(connections) == 2


async def test_a_stray_reply_never_answers_the_next_call():
    async with serving([OK, 0.02, STRAY], [OK]) as (door, arrived, connections):
        assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        await asyncio.sleep(0.1)
        assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        assert len(arrived) == len(connections) == 2


class Blunt:
    """A server on a thread, which goes on while the event loop is busy: it answers a request with
    its own body, and then sends ``after``; None closes."""

    def __init__(self, after):
        self.after = after
        self.sent = threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.connections = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                self.connections.append(self.listening.accept()[0])
                told = (self.connections[-1],)
                self.threads.append(threading.Thread(target=self._answer, args=told, daemon=True))
                self.threads[-1].start()

    def _answer(self, connection):
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            length = 0
            while line := lines.readline():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
                if line != b"\r\n":
                    continue
                body = lines.read(length)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + body)
                time.sleep(0.02)  # not with the reply
                if self.after is None:
                    connection.shutdown(socket.SHUT_RDWR)
                else:
                    connection.sendall(self.after)
                self.sent.set()

    def close(self):
        self.listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        for thread in self.threads:
            thread.join(5)
        for each in (self.listening, *self.connections):
            each.close()


@pytest.mark.parametrize("after", [STRAY, None], ids=["stray", "closed"])
async def test_what_arrived_while_the_loop_was_busy_is_seen(after):
    server = Blunt(after)
    door = Transport(Address.of(f"http://127.0.0.1:{server.port}", "k"), 4)
    await door.open()
    try:
        assert (await door.pooled("x", b"one", 5.0)).body == b"one"
        assert server.sent.wait(5)  # the loop stands still
        assert (await door.pooled("x", b"two", 5.0)).body == b"two"
        assert len(server.connections) == 2
    finally:
        await door.close()
        server.close()


async def test_a_reset_is_no_end_of_a_reply():
    """A reply without a length ends with its connection, but not with one that broke."""

    async def handle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n[1,2")
        await writer.drain()
        await asyncio.sleep(0.05)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    door = Transport(Address.of(f"http://127.0.0.1:{port}", "k"), 4)
    await door.open()
    with pytest.raises(NoReply, match="broke off") as caught:
        await door.pooled("x", b"", 5.0)
    assert caught.value.verdict.outcome == "unknown"
    await over.wait()
    await door.close()
    server.close()


async def test_an_idle_connection_that_fills_with_garbage_is_not_used():
    async with serving([OK, 0.02, b"garbage\r\n\r\n"], [OK]) as (door, _, connections):
        assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        await asyncio.sleep(0.1)
        assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        assert len(connections) == 2


async def test_a_connection_that_the_server_closed_is_not_used():
    async with serving([OK, None], [OK]) as (door, _, connections):
        await door.pooled("x", b"", 2.0)
        await asyncio.sleep(0.05)
        assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        assert len(connections) == 2


async def test_an_idle_connection_is_trusted_for_a_while_only(monkeypatch):
    monkeypatch.setattr(transport, "_KEEPALIVE_SECONDS", 0.05)
    async with serving([OK], [OK]) as (door, _, connections):
        await door.pooled("x", b"", 2.0)
        await asyncio.sleep(0.1)
        await door.pooled("x", b"", 2.0)
        assert len(connections) == 2


async def test_the_limit_holds_and_everybody_gets_a_turn():
    replies = [[0.01, OK] for _ in range(20)]
    async with serving(*replies, limit=3) as (door, _, connections):
        done = await asyncio.gather(*(door.pooled("x", b"", 5.0) for _ in range(20)))
        assert {reply.body for reply in done} == {b"hi"}
        assert len(connections) == 3


async def test_who_leaves_gives_the_place_back():
    async with serving([5.0], [OK], limit=1) as (door, _, _):
        first = asyncio.create_task(door.pooled("x", b"", 5.0))
        await asyncio.sleep(0.05)
        with pytest.raises(NoReply, match="in time"):
            await door.pooled("x", b"", 0.05)
        waiting = [asyncio.create_task(door.pooled("x", b"", 5.0)) for _ in range(2)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        first.cancel()
        assert (await waiting[1]).body == b"hi"
        results = await asyncio.gather(first, waiting[0], return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)


@contextlib.asynccontextmanager
async def silent(first: bytes):
    """A server that says ``first`` after the head of a request, and reads no further."""
    writers, tasks = [], set()

    async def handle(reader, writer):
        writers.append(writer)
        tasks.add(asyncio.current_task())
        with contextlib.suppress(*ENDS):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            await asyncio.sleep(30)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    door = Transport(Address.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "k"), 2)
    await door.open()
    try:
        yield door
    finally:
        await door.close()
        server.close()
        for writer in writers:
            writer.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def test_a_server_that_stops_reading_is_left_at_the_deadline(caplog):
    async with silent(b"") as door:
        with pytest.raises(NoReply, match="no reply in time"):
            await door.pooled("x", b"x" * 20_000_000, 0.5)
        late = asyncio.create_task(door.pooled("x", b"x" * 20_000_000, 20.0))
        await asyncio.sleep(0.2)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_an_announcement_is_no_reply():
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with serving([hints, 0.02, OK], [hints + OK]) as (door, _, connections):
        for _ in range(2):
            assert await door.pooled("x", b"", 2.0) == Reply(200, b"hi")
        assert len(connections) == 1


async def test_a_compressed_reply_is_unpacked():
    packed = gzip.compress(b"hi")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    async with serving([head % len(packed) + packed], [head % 2 + b"hi"]) as (door, _, _):
        assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        with pytest.raises(NoReply, match="broke off"):
            await door.pooled("x", b"", 2.0)


async def test_chunks_are_put_together():
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"
    async with serving([chunks[:50], 0.02, chunks[50:]], [OK]) as (door, _, connections):
        for _ in range(2):
            assert (await door.pooled("x", b"", 2.0)).body == b"hi"
        assert len(connections) == 1


async def test_an_answer_before_all_was_sent_is_taken():
    async with silent(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n") as door:
        for _ in range(2):  # on another connection, or the rest of the first body would be read
            assert (await door.pooled("x", b"x" * 20_000_000, 5.0)).status == 413


async def test_no_time_left_is_not_for_ever():
    async with serving([5.0]) as (door, _, _):
        with pytest.raises(NoReply, match="in time"):
            await door.pooled("x", b"", -1.0)


async def test_through_a_proxy(monkeypatch):
    async with serving([OK], [OK]) as (near, arrived, connections):
        monkeypatch.setenv("http_proxy", near.address.url)
        monkeypatch.delenv("no_proxy", raising=False)
        door = Transport(Address.of("http://policy.test", "k"), 2)
        await door.open()
        try:
            for _ in range(2):
                assert (await door.pooled("x", b"{}", 2.0, {"Prefer": "wait=30"})).body == b"hi"
        finally:
            await door.close()
        assert len(connections) == 1
        head = arrived[0][0].decode().lower()
        assert head.startswith("post http://policy.test/api/v1/x http/1.1")
        assert "x-api-key: k" in head
        assert "prefer: wait=30" in head


async def test_nobody_listens():
    async with serving() as (door, _, _):
        pass
    await door.open()
    with pytest.raises(NoReply, match="connection refused") as caught:
        await door.pooled("x", b"", 2.0)
    await door.close()
    assert caught.value.verdict.outcome == "transient"
