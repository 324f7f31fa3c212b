"""HTTP/1.1 as this server needs it: one protocol object a connection, no task for a quick answer.

A sampled turn costs two requests, and a run makes tens of thousands of turns, so the path from
bytes to handler to bytes is short: find the head, keep the six headers that matter, wait for
Content-Length bytes, call the handler. A handler answers at once with a `Response` or returns a
coroutine, which becomes the connection's one task. Requests of a connection are answered in
order; the next is looked at when the answer before it has been taken. Chunked request bodies are
refused with 411: every client of this API sends a length.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD = 64 * 2**10
MAX_BODY = 64 * 2**20
MAX_HEADS = 2048
HIGH_WATER = 256 * 2**10
IDLE = 300.0
LINGER = 10.0

_KEPT = frozenset((
    b"content-length", b"transfer-encoding", b"content-type", b"connection", b"x-api-key",
    b"expect", b"accept",
))  # fmt: skip
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: dict[bytes, bytes]  # lower-case names, of `_KEPT` only
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = "application/json"
    close: bool = False


Handler = Callable[[Request], "Response | Coroutine[None, None, Response]"]
Trouble = Callable[[int, str], Response]  # a status and a reason, as a body of this API


class Listener:
    """All connections of one server; `close` lets each finish its answer, then cuts."""

    def __init__(self, handler: Handler, trouble: Trouble) -> None:
        self.handler = handler
        self.trouble = trouble
        self.connections: set[Connection] = set()
        self.heads: dict[bytes, tuple[Request, int]] = {}
        self._empty = asyncio.Event()

    def __call__(self) -> Connection:
        return Connection(self)

    def remember(self, head: bytes, request: Request, length: int) -> None:
        """A client's heads repeat byte for byte; reading one again costs a look-up."""
        if len(self.heads) >= MAX_HEADS:
            self.heads.clear()
        if len(head) < 2048:
            self.heads[head] = (request, length)

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def drop_idle(self) -> None:
        horizon = time.monotonic() - IDLE
        for connection in [c for c in self.connections if c.idle_since(horizon)]:
            connection.cut()

    async def close(self, patience: float) -> None:
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), patience)
        for connection in list(self.connections):
            connection.cut()


class Connection(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: Request | None = None  # read, and waiting for its body
        self._missing = 0  # length of that body
        self._task: asyncio.Task[Response] | None = None
        self._closing = False
        self._choked = False  # the client does not take what we wrote
        self._last = time.monotonic()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.left(self)
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._last = time.monotonic()
        if self._closing:
            self._discard(len(data))
            return
        self._buffer += data
        if self._task is None and not self._choked:
            self._advance()
        elif len(self._buffer) > HIGH_WATER and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._next()

    # --- one request after the other

    def _next(self) -> None:
        if self._transport is None or self._task is not None or self._choked:
            return
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()
        if self._buffer:
            self._advance()

    def _advance(self) -> None:
        while self._transport is not None and not self._closing and not self._choked:
            request = self._read()
            if request is None:
                return
            answer = self._listener.handler(request)
            close = request.headers.get(b"connection", b"").lower() == b"close"
            if isinstance(answer, Response):
                self._write(answer, close)
                continue
            self._task = asyncio.get_running_loop().create_task(answer)
            self._task.add_done_callback(lambda task, close=close: self._done(task, close))  # type: ignore[misc]
            return

    def _done(self, task: asyncio.Task[Response], close: bool) -> None:
        self._task = None
        if task.cancelled() or self._transport is None:
            return
        self._write(task.result(), close)
        self._next()

    def _read(self) -> Request | None:
        """The next whole request in the buffer, or None; trouble answers and closes."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD:
                    self._refuse(431, f"headers: larger than {MAX_HEAD} bytes")
                return None
            head = bytes(self._buffer[:end])
            del self._buffer[:end + 4]
            known = self._listener.heads.get(head)
            if known is not None:
                self._head, self._missing = known
            elif not self._parse(head):
                return None
        head_request = self._head
        assert head_request is not None
        if len(self._buffer) < self._missing:
            return None
        body = bytes(self._buffer[:self._missing])
        del self._buffer[:self._missing]
        self._head = None
        self._missing = 0
        return Request(head_request.method, head_request.target, head_request.headers, body)

    def _parse(self, head: bytes) -> bool:
        lines = head.lstrip(b"\r\n").split(b"\r\n")
        words = lines[0].split(b" ")
        if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            return self._refuse(400, "request line: not HTTP/1.1")
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if name in _KEPT:
                if name in headers and name == b"content-length":
                    return self._refuse(400, "Content-Length: given twice")
                headers[name] = value.strip()
            elif not colon or not name or name.strip() != name:
                return self._refuse(400, "headers: a line is not `name: value`")
        if words[2] == b"HTTP/1.0":
            headers[b"connection"] = b"close"
        if b"transfer-encoding" in headers:
            return self._refuse(411, "Content-Length: missing; chunked bodies are not served")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return self._refuse(400, "Content-Length: not a number")
        self._missing = int(length[:20])
        if self._missing > MAX_BODY:
            return self._refuse(
                413, f"body: larger than {MAX_BODY} bytes; send fewer data in one request",
                unread=self._missing - len(self._buffer),
            )
        if b"expect" in headers and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._head = Request(words[0].decode("latin-1"), words[1].decode("latin-1"), headers, b"")
        if b"expect" not in headers:
            self._listener.remember(head, self._head, self._missing)
        return True

    def _refuse(self, status: int, reason: str, unread: int = 0) -> bool:
        """Answer and close; a body on its way is read first, or its sender sees only a reset."""
        self._missing = unread
        self._write(self._listener.trouble(status, reason), True)
        self._buffer.clear()
        return False

    def _discard(self, count: int) -> None:
        self._missing -= count
        if self._missing <= 0 and self._task is None and self._transport is not None:
            self._transport.close()

    def _write(self, response: Response, close: bool) -> None:
        if self._transport is None:
            return
        close = close or self._closing
        extra = "Connection: close\r\n" if close else ""
        if response.status == 429:
            extra += "Retry-After: 1\r\n"
        head = (
            f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n{extra}\r\n"
        )
        self._transport.write(head.encode("latin-1") + response.body)
        if close:
            self._closing = True
            if self._head is None and self._missing > 0:
                asyncio.get_running_loop().call_later(LINGER, self.cut)
            else:
                self._transport.close()

    # --- the end

    def idle_since(self, horizon: float) -> bool:
        return self._task is None and self._last < horizon

    def finish(self) -> None:
        """Close after the answer in progress, or now when there is none."""
        self._closing = True
        if self._task is None and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(Exception):
                self._transport.abort()
