"""Keep-alive HTTP/1.1 connections for the calls of every turn: at most one request on each.

This is as little as a POST with a small reply needs, because a client library's request and
response objects cost several times more than the rest of a turn. Replies are parsed by httptools
(the parser of Node.js). Nothing is retried, followed or remembered here.

A connection is used again only if it is young enough, was left clean by its last reply, and
nothing arrived on it while it was idle: what a server sends unasked would answer the next call,
one turn's tokens in place of another's. The socket itself is asked, as a busy event loop has not
read what arrived last; a connection that the server has closed meanwhile is found so, too.
"""

import asyncio
import select
import ssl
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import httptools

from mtrl_cli.servers.errors import NoReply, ReplyTooLargeError, Verdict, judge_exception
from mtrl_cli.servers.unpacking import unpacked

_PIECE = 2**18
"""A larger body is written in pieces, so that it does not hold up the event loop."""


LARGEST_REPLY = 2**26
"""Bytes of one reply, on the wire and unpacked: ten times those of a turn that fills a context of
128,000 tokens, with room for a call of many turns. A larger one is given up."""


class ReplyMissingError(ConnectionError):
    """The connection was closed before the reply."""


class ReplyBrokenError(ConnectionError):
    """The connection was closed inside the reply."""


class NotHttpError(ConnectionError):
    """What came is not a reply."""


@dataclass(frozen=True, slots=True)
class RawReply:
    """``headers``: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Pool:
    """Connections to one host.

    Args:
        context: for TLS; None is plain HTTP.
        limit: connections at once; more requests wait their turn.
        keepalive: seconds that an idle connection is trusted.
        connect: seconds that a connection may take to open.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        context: ssl.SSLContext | None,
        limit: int,
        keepalive: float,
        connect: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._host, self._port, self._context = host, port, context
        self._free = limit
        self._keepalive, self._connect = keepalive, connect
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def post(self, head: bytes, body: bytes, seconds: float) -> RawReply:
        """One request. ``head`` is its head to the end, ``seconds`` is for all of it.

        Raises:
            NoReply: no reply came.
        """
        deadline = self._loop.time() + max(seconds, 0.001)
        timer: asyncio.TimerHandle | None = None
        await self._enter(deadline)
        connection: _Connection | None = None
        try:
            connection = self._usable() or await self._open(deadline)
            reply = connection.expect()
            timer = self._loop.call_at(deadline, _too_late, reply)
            await connection.send(head, body)
            return await reply
        except (OSError, ValueError) as error:  # TimeoutError and ours are OSErrors
            raise NoReply(judge_exception(error)) from None
        finally:
            if timer is not None:
                timer.cancel()
            if connection is not None:
                self._put_back(connection)
            self._leave()

    async def close(self) -> None:
        """Drop every connection."""
        connections, self._idle = list(self._all), []
        for connection in connections:
            connection.drop()
        for connection in connections:
            with suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(connection.closed, 0.25)

    # A place under the limit.

    async def _enter(self, deadline: float) -> None:
        if self._free > 0:
            self._free -= 1
            return
        place: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(place)
        timer = self._loop.call_at(deadline, _too_late, place)
        try:
            await place
        except TimeoutError:
            raise NoReply(Verdict("transient", "no connection was free in time")) from None
        except asyncio.CancelledError:
            if not place.cancelled():  # it was given just now
                self._leave()
            raise
        finally:
            timer.cancel()
            with suppress(ValueError):
                self._waiting.remove(place)

    def _leave(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    # Connections.

    def _usable(self) -> "_Connection | None":
        oldest = time.monotonic() - self._keepalive
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.silent():
                return connection
            connection.drop()
        return None

    def _put_back(self, connection: "_Connection") -> None:
        if connection.clean:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.drop()

    async def _open(self, deadline: float) -> "_Connection":
        seconds = min(self._connect, deadline - self._loop.time())
        try:
            async with asyncio.timeout(seconds):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self._loop, self._all),
                    self._host,
                    self._port,
                    ssl=self._context,
                    server_hostname=self._host if self._context is not None else None,
                )
        except TimeoutError:
            raise NoReply(Verdict("transient", "no connection in time")) from None
        except (OSError, ValueError) as error:
            verdict = judge_exception(error)
            if isinstance(error, ssl.SSLError):
                raise NoReply(replace(verdict, outcome="transient")) from None
            says = verdict.says if verdict.outcome == "transient" else "no connection"
            raise NoReply(Verdict("transient", says)) from None
        return connection


def _too_late(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())


class _Connection(asyncio.Protocol):
    """One connection; callbacks of the parser and of asyncio end in the expected reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop, known: "set[_Connection]") -> None:
        self._loop = loop
        self._known = known
        self._reply: asyncio.Future[RawReply] | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._left = LARGEST_REPLY
        self._begun = self._sized = self._sent = False
        self._room: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._arrived = select.poll()
        self.clean = True
        """Nothing is on the wire that no call asked for, and the server keeps it open."""
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = loop.create_future()

    # For the pool.

    def silent(self) -> bool:
        """Whether it is clean, and nothing waits to be read, not even its end."""
        return self.clean and not self._arrived.poll(0)

    def expect(self) -> "asyncio.Future[RawReply]":
        self._reply = self._loop.create_future()
        self.clean = self._sent = False  # until the reply is whole
        self._left = LARGEST_REPLY
        return self._reply

    async def send(self, head: bytes, body: bytes) -> None:
        transport = self._transport
        if transport is None:
            raise ReplyMissingError
        if len(body) <= _PIECE:
            transport.write(head + body)
            self._sent = True
            return
        transport.write(head)
        for start in range(0, len(body), _PIECE):
            transport.write(memoryview(body)[start : start + _PIECE])
            if self._room is not None and self._reply is not None:
                waited: set[asyncio.Future[Any]] = {self._room, self._reply}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._transport is None or self._reply is None or self._reply.done():
                return  # answered, closed or given up before all was sent
            await asyncio.sleep(0)
        self._sent = True

    def drop(self) -> None:
        """Close at once; a reply that is still expected is given up."""
        self.clean = False
        if self._reply is not None:
            self._reply.cancel()
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._arrived.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._known.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._known.discard(self)
        self.clean = False
        self.resume_writing()
        if not self.closed.done():
            self.closed.set_result(None)
        if self._reply is not None and not self._reply.done():
            if self._begun and not self._sized and error is None:  # its end is the connection's
                self._finish(keep=False)
            elif self._begun:
                self._fail(ReplyBrokenError())
            else:
                self._fail(error if isinstance(error, OSError) else ReplyMissingError())

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            self.drop()  # nobody asked
            return
        self._left -= len(data)
        if self._left < 0:
            self._fail(ReplyTooLargeError(LARGEST_REPLY))
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(NotHttpError())
            self.drop()

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        if self._reply is None or self._reply.done():
            self.clean = False  # a second reply to one request
        self._headers, self._body = {}, []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._begun = True
        self._sized = "content-length" in self._headers or "transfer-encoding" in self._headers

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # 1xx announces, and is no reply
            self._finish(keep=self._sized and self._parser.should_keep_alive())
        self._begun = False

    def _finish(self, *, keep: bool) -> None:
        reply, transport = self._reply, self._transport
        if reply is None or reply.done():
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        try:
            body = unpacked(body, self._headers, LARGEST_REPLY)
        except OSError as error:
            self._fail(error)
            return
        # A server that answers before it has read all may still be reading the rest.
        whole = self._sent and transport is not None and not transport.get_write_buffer_size()
        self.clean = keep and whole
        reply.set_result(RawReply(self._parser.get_status_code(), self._headers, body))

    def _fail(self, error: OSError) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
