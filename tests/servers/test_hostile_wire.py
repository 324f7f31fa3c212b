"""Bytes that no good server sends, at both doors: a reply, or one line that says why there is none.
Nothing is logged by asyncio, nothing stays behind for the next call, and no body takes all memory.
"""

import asyncio
import gzip
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrl_cli.servers import pool, transport
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.transport import NoReply, Reply, Transport

from .raw import Raw, raw, reply

KEY = "tml-secret-key-0123"
DOORS = ("pooled", "single")
lines: list[str] = []
"""What was said of failures."""

ANSWERS = {
    "nothing": b"",
    "an upgrade": b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhi",
    "HTTP/0.9": b"<html>hello</html>",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a status of five digits": b"HTTP/1.1 99999 OK\r\nContent-Length: 0\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a length beyond 64 bits": b"HTTP/1.1 200 OK\r\nContent-Length: "
    + b"9" * 30
    + b"\r\n\r\nhello",
    "a length never reached": b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\nhi",
    "a chunk without a length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
    "a chunk beyond 64 bits": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 20,
    "NUL in a header": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "no gzip": reply(b"hello", "Content-Encoding: gzip\r\n"),
    "half of a gzip": reply(gzip.compress(b"hello" * 99)[:20], "Content-Encoding: gzip\r\n"),
    "a redirect to nowhere": reply(b"", "Location: http://[::1\r\n", "302 Found"),
    "a redirect to no address": reply(b"", "Location: javascript:1\r\n", "302 Found"),
    "a cookie that is no text": reply(b"{}", "Set-Cookie: \xff\xfe=\xff; Path=/\r\n"),
    "a charset that is no text": reply(b"{}", "Content-Type: text/html; charset=\xff\xff\r\n"),
}


async def call(door: str, client: Transport, seconds: float = 5.0) -> Reply | NoReply:
    try:
        if door == "pooled":
            return await client.pooled("asample", b"{}", seconds)
        return await client.single("POST", "optim_step", b"{}", seconds)
    except NoReply as error:
        lines.append(error.verdict.says)
        return error


async def opened(server: Raw) -> Transport:
    client = Transport(Address.of(server.url, KEY), 4)
    await client.open()
    return client


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_whatever_comes(answer, door, caplog):
    async with raw() as server:
        client = await opened(server)
        server.answer = ANSWERS[answer]
        outcome = await call(door, client)
        if isinstance(outcome, NoReply):
            assert outcome.verdict.outcome == "unknown"  # it may have been executed
        server.answer = reply(b'{"fine": 1}')
        after = await call(door, client)
        await client.close()
        assert isinstance(after, Reply)
        assert after.body == b'{"fine": 1}'
        assert b"cookie" not in server.seen[-1].lower()
        assert [line for line in caplog.records if line.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("packed", [False, True])
async def test_a_reply_has_a_greatest_length(door, packed, monkeypatch):
    monkeypatch.setattr(pool, "LARGEST_REPLY", 2**20)
    monkeypatch.setattr(transport, "LARGEST_REPLY", 2**20)
    async with raw() as server:
        client = await opened(server)
        if packed:  # 2 KB on the wire
            server.answer = reply(gzip.compress(bytes(2**21)), "Content-Encoding: gzip\r\n")
        else:
            server.answer, server.more = b"HTTP/1.1 200 OK\r\n\r\n", bytes(2**16)
        outcome = await call(door, client, 30.0)
        await client.close()
    assert isinstance(outcome, NoReply)
    assert outcome.verdict.says == "the reply is larger than 1 MiB"
    assert outcome.verdict.outcome == "unknown"


@pytest.mark.parametrize("door", DOORS)
async def test_a_head_that_never_ends(door, monkeypatch):
    monkeypatch.setattr(pool, "LARGEST_REPLY", 2**20)
    async with raw() as server:
        client = await opened(server)
        server.answer, server.more = b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n"
        assert isinstance(await call(door, client, 30.0), NoReply)
        await client.close()


@pytest.mark.parametrize("door", DOORS)
async def test_a_packed_reply_is_read(door):
    async with raw() as server:
        client = await opened(server)
        server.answer = reply(gzip.compress(b'{"a": 1}'), "Content-Encoding: gzip\r\n")
        outcome = await call(door, client)
        await client.close()
    assert isinstance(outcome, Reply)
    assert outcome.body == b'{"a": 1}'


@pytest.mark.parametrize("door", DOORS)
async def test_no_time_left_is_not_unknown(door):
    """What was not sent was not executed."""
    async with raw() as server:
        client = await opened(server)
        outcome = await call(door, client, 0.0 if door == "single" else -1.0)
        await client.close()
        if door == "single":
            assert isinstance(outcome, NoReply)
            assert outcome.verdict.outcome == "transient"
            assert server.seen == []


BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from([
            b"HTTP/1.1 ", b"HTTP/1.0 ", b"200 OK", b"100 X", b"101 X", b"204", b"\r\n", b"\n",
            b"\r\n\r\n", b"Content-Length: ", b"5", b"0", b"-1", b"Transfer-Encoding: chunked",
            b"Connection: ", b"Upgrade", b"close", b"Content-Encoding: gzip", b"Set-Cookie: a=b",
            b"hello", b"5\r\nhello\r\n", b"0\r\n\r\n", b"\0", b"\xff", b" ", b":", b"Location: //",
        ]),
        max_size=14,
    ).map(b"".join),
)  # fmt: skip


def _bytes_test(examples: int):
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(answers=st.lists(BYTES, min_size=1, max_size=8))
    def run(caplog, answers):
        async def meet():
            async with raw() as server:
                client = await opened(server)
                for server.answer in answers:
                    for door in DOORS:
                        assert isinstance(await call(door, client), Reply | NoReply)
                await client.close()

        asyncio.run(meet())
        assert [line for line in caplog.records if line.levelno >= logging.ERROR] == []
        assert all(line.isprintable() for line in lines)

    return run


test_bytes = _bytes_test(5)
test_many_bytes = pytest.mark.long(_bytes_test(120))
