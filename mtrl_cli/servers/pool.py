"""Pooled HTTP/1.1 POSTs to one server, for the calls that are made every turn.

A client library spends several times more on its request and response objects than the sockets
cost, and a run makes a hundred thousand of these calls. So they have a connection class of their
own, which does only what such a call needs: one POST at a time per connection, a reply whose end
is told by its length, by chunks or by the connection's end, and nothing else. No redirects, no
compression, no cookies; a proxy is somebody else's work (see `transport`).

A connection is used again only if the last reply ended exactly where it said. Anything that
arrives while nobody waits closes it, so that a stray reply can never answer the next call.
"""

import asyncio
import collections
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mtrl_cli.servers.errors import Verdict, judge_exception

_LONGEST_HEAD = 65_536


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it came."""

    status: int
    body: bytes
    retry_after: str | None = None


class NoReply(Exception):  # noqa: N818
    """A request that ended without a reply; ``verdict`` says whether it may have been executed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.says)
        self.verdict = verdict


class Pool:
    """Connections to one address.

    Args:
        url: the address, http or https, with the path that all calls share.
        headers: sent with every request.
        limit: how many requests are in flight at once; more of them wait their turn.
        connect_seconds: how long one connection may take to open.
        keepalive_seconds: how long an idle connection is trusted.
        context: for https.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        limit: int,
        connect_seconds: float,
        keepalive_seconds: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path
        fixed = {"Host": parts.netloc, **headers}
        self._headers = _lines(fixed)
        self._context = context
        self._connect_seconds = connect_seconds
        self._keepalive_seconds = keepalive_seconds
        self._free = limit
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._idle: list[tuple[_Connection, float]] = []
        self._open: set[_Connection] = set()

    async def post(
        self, path: str, body: bytes, seconds: float, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """POST and await the reply for at most ``seconds``, waiting for one's turn included.

        Raises:
            NoReply: no reply came.
        """
        head = (
            f"POST {self._path}{path} HTTP/1.1\r\n{self._headers}{_lines(headers or {})}"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode("ascii")
        deadline = time.monotonic() + seconds
        await self._enter(seconds)
        try:
            connection = self._reusable() or await self._connect(deadline)
            reply = await connection.exchange(head, body, deadline - time.monotonic())
        finally:
            self._leave()
        if connection.reusable:
            self._idle.append((connection, time.monotonic()))
        return reply

    async def close(self) -> None:
        """Close every connection, and let the event loop see it."""
        self._idle.clear()
        closing = [connection.close() for connection in self._open]
        if closing:
            await asyncio.wait(closing, timeout=1.0)

    # Whose turn it is.

    async def _enter(self, seconds: float) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # the turn came in the same moment: it is the next one's
            if isinstance(error, TimeoutError):
                raise NoReply(Verdict("transient", "no free connection in time")) from None
            raise

    def _leave(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    # Connections.

    def _reusable(self) -> "_Connection | None":
        """The connection used last; those idle for too long are closed."""
        oldest = time.monotonic() - self._keepalive_seconds
        while self._idle:
            connection, since = self._idle.pop()
            if connection.reusable and since >= oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, deadline: float) -> "_Connection":
        loop = asyncio.get_running_loop()
        seconds = min(self._connect_seconds, deadline - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                _, made = await loop.create_connection(
                    lambda: _Connection(self._open), self._host, self._port, ssl=self._context
                )
        except TimeoutError:
            raise NoReply(Verdict("transient", "no connection in time")) from None
        except OSError as error:
            says = judge_exception(error).says
            raise NoReply(Verdict("transient", says)) from None
        connection: _Connection = made
        return connection


class _Connection(asyncio.Protocol):
    """One connection: exchanges one request for one reply at a time."""

    def __init__(self, register: "set[_Connection]") -> None:
        self._register = register
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._waiter: asyncio.Future[Reply] | None = None
        self._transport: asyncio.Transport | None = None
        self._begin()

    def _begin(self) -> None:
        self._buffer = bytearray()
        self._start = -1
        self._status = 0
        self._length: int | None = None
        self._chunked = False
        self._keep = True
        self._retry_after: str | None = None

    @property
    def reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> "asyncio.Future[None]":
        if self._transport is not None:
            self._transport.abort()
        return self._gone

    async def exchange(self, head: bytes, body: bytes, seconds: float) -> Reply:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NoReply(Verdict("transient", "the connection closed"))
        self._begin()
        waiter: asyncio.Future[Reply] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(max(0.0, seconds), self._late)
        transport.writelines((head, body))
        try:
            return await waiter
        except asyncio.CancelledError:
            transport.abort()
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # retrieved: nobody is left to be told
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def _late(self) -> None:
        self._fail("no reply in time")

    def _fail(self, says: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(NoReply(Verdict("unknown", says)))
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._register.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        until_close = self._start >= 0 and self._length is None and not self._chunked
        if self._waiter is not None and until_close and error is None:
            self._finish(bytes(self._buffer[self._start :]), len(self._buffer))
        elif self._start >= 0:
            self._fail("the reply broke off")
        else:
            self._fail("the connection was closed before the reply")
        self._register.discard(self)
        self._transport = None
        if not self._gone.done():
            self._gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self._fail("a reply that nobody asked for")
            return
        self._buffer += data
        try:
            self._read()
        except ValueError:
            self._fail("the reply is not HTTP")

    # The reply.

    def _read(self) -> None:
        buffer = self._buffer
        while self._start < 0:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > _LONGEST_HEAD:
                    raise ValueError("no end of the head")
                return
            self._read_head(bytes(buffer[: end + 2]))
            if 100 <= self._status < 200:
                del buffer[: end + 4]
            else:
                self._start = end + 4
        if self._chunked:
            self._read_chunks()
        elif self._length is not None and len(buffer) >= self._start + self._length:
            end = self._start + self._length
            self._finish(bytes(buffer[self._start : end]), end)

    def _read_head(self, head: bytes) -> None:
        if head[:7] != b"HTTP/1." or head[8:9] != b" ":
            raise ValueError("not a status line")
        self._status = int(head[9:12])
        lower = head.lower()
        length = _field(head, lower, b"\r\ncontent-length:")
        coding = _field(head, lower, b"\r\ntransfer-encoding:")
        wish = _field(head, lower, b"\r\nconnection:")
        after = _field(head, lower, b"\r\nretry-after:")
        self._chunked = coding is not None and coding.lower() == b"chunked"
        if coding is not None and not self._chunked:
            raise ValueError("an unknown transfer coding")
        self._length = None if length is None else int(length)
        if self._length is not None and self._length < 0:
            raise ValueError("a negative length")
        if self._status in (204, 304):
            self._length, self._chunked = 0, False
        self._keep = head[7:8] == b"1" and (wish is None or wish.lower() != b"close")
        self._retry_after = None if after is None else after.decode("latin-1")

    def _read_chunks(self) -> None:
        buffer, at = self._buffer, self._start
        pieces: list[bytes] = []
        while (end := buffer.find(b"\r\n", at)) >= 0:
            size = int(bytes(buffer[at:end]).partition(b";")[0], 16)
            if size < 0:
                raise ValueError("a negative chunk")
            if size == 0:
                last = buffer.find(b"\r\n\r\n", end)
                if last >= 0:
                    self._finish(b"".join(pieces), last + 4)
                return
            begin = end + 2
            if len(buffer) < begin + size + 2:
                return
            pieces.append(bytes(buffer[begin : begin + size]))
            at = begin + size + 2

    def _finish(self, body: bytes, end: int) -> None:
        assert self._waiter is not None
        told = self._length is not None or self._chunked
        again = self._keep and told and end == len(self._buffer)
        if self._transport is not None and not again:
            self._transport.abort()
        if not self._waiter.done():
            self._waiter.set_result(Reply(self._status, body, self._retry_after))


def _field(head: bytes, lower: bytes, name: bytes) -> bytes | None:
    at = lower.find(name)
    if at < 0:
        return None
    at += len(name)
    return head[at : head.index(b"\r\n", at)].strip()


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
