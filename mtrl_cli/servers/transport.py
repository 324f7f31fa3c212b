"""HTTP to one training service: two doors, one address, one key.

**Pooled** is for the calls made every turn (sample and poll). It has connections of its own
(`pool`): a client library's request and response objects would cost several times more than the
rest of the turn. Broken keep-alive connections are met here, where a call can simply be made
again. Through a proxy it is httpx over aiohttp.

**Single** is for the calls whose outcome matters (create, train, save). It is httpx over aiohttp,
on a fresh connection each time: a connection that the server has just closed for idleness would
turn a training call that was never sent into one of unknown outcome.

Neither door repeats anything, but for one thing: where a token stands for the user's key (`keys`),
a request that the server refuses unread because of the token is made again with another one. A
call ends in a `Reply`, whatever its status, or in `NoReply`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mtrl_cli.servers.address import Address as Address
from mtrl_cli.servers.address import no_cookies, proxy_for, unfollowed
from mtrl_cli.servers.budget import Budget
from mtrl_cli.servers.errors import NoReply as NoReply
from mtrl_cli.servers.errors import Verdict, judge_exception, judge_reply
from mtrl_cli.servers.keys import HEADER, Keys
from mtrl_cli.servers.limiter import Limiter
from mtrl_cli.servers.strain import Strain, Trouble
from mtrl_cli.servers.unpacking import gathered, unpacked

if TYPE_CHECKING:
    import httpx

    from mtrl_cli.servers.pool import Pool

PREFIX = "/api/v1/"
CONNECT_SECONDS = 7.5
"""Less than a stop waits for a call (`training.operations.PATIENCE`): one that has found no
connection was surely not sent, and has the time to say so."""

# Shorter than the keep-alive of common servers (uvicorn's is 5 s), so that the pool gives up a
# connection before the server does.
_KEEPALIVE_SECONDS = 4.0

_MOST_HEADS = 64

LARGEST_REPLY = 2**29
"""Bytes of one reply to a training call, unpacked: the logprobs of some 25 million tokens as JSON.
A larger one ends the call, with what is known of it. (Turns have `pool.LARGEST_REPLY`.)"""
_Key = tuple[str, tuple[tuple[str, str], ...]]

# A body is written in pieces of this size, so that a large batch does not hold up the event loop.
_PIECE = 2**18


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it came."""

    status: int
    body: bytes
    retry_after: str | None = None
    content_type: str | None = None
    token_refused: bool = False
    """A 401 that says that the token shown is not valid (RFC 6750)."""


class Transport:
    """The two doors to one service. Opened on the event loop that uses it.

    Args:
        address: where the service is.
        connections: how many pooled requests are in flight at once; more of them wait.
        gone: says how the server ended, once it has; from then on nothing is sent to it.
    """

    def __init__(
        self, address: Address, connections: int, gone: Callable[[], str | None] = lambda: None
    ) -> None:
        self.address = address
        self.keys = Keys(address.api_key)
        self.gone = gone
        self.limiter = Limiter()
        self.trouble = Trouble()
        self._ending = asyncio.Event()
        self._pausing_until = 0.0
        self._connections = connections
        self._heads: dict[_Key, bytes] = {}
        self._pool: Pool | None = None
        self._client: httpx.AsyncClient | None = None
        self._proxied: httpx.AsyncClient | None = None

    def budget(self, seconds: float, attempts: int) -> Budget:
        """The budget of one logical call; what is made again under it is counted."""
        return Budget(seconds, attempts, self.trouble.again)

    def stop_waiting(self) -> None:
        """The run ends: nothing waits for its turn any more. What is on its way goes on."""
        self._ending.set()

    async def pause(self, seconds: float, *, anyway: bool = False) -> bool:
        """Wait before a training call is sent again; False: the run ends, and it shall not be.

        Args:
            anyway: it shall be, whatever ends.
        """
        if anyway:
            await asyncio.sleep(seconds)
            return True
        self._pausing_until = time.monotonic() + seconds
        return await self._unended(seconds)

    async def _unended(self, seconds: float) -> bool:
        """Wait so long, or until the run ends; False where it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return not self._ending.is_set()

    @property
    def closed_for(self) -> float:
        """Seconds for which no training call can be sent; see `interface.TrainingService`."""
        return max(self.limiter.left, self._pausing_until - time.monotonic(), 0.0)

    @property
    def strain(self) -> Strain:
        """How hard the calls go at this moment."""
        strain = self.trouble.strain
        return replace(strain, waits=self.limiter.says) if self.limiter.holds else strain

    async def open(self) -> None:
        import aiohttp
        import httpx
        import httpx_aiohttp

        from mtrl_cli.servers.pool import Pool

        parts = urlsplit(self.address.url)
        secure = parts.scheme == "https"
        context = httpx.create_ssl_context() if secure else None
        proxy = proxy_for(self.address.url)

        def client(connector: aiohttp.TCPConnector) -> httpx.AsyncClient:
            session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), proxy=proxy
            )
            return httpx.AsyncClient(
                transport=httpx_aiohttp.AiohttpTransport(client=session, verify=False),
                base_url=self.address.url + PREFIX,
                headers={**self.address.headers, "Accept-Encoding": "identity"},
                cookies=no_cookies(),
                event_hooks={"response": [unfollowed]},
                trust_env=False,
            )

        connector = partial(aiohttp.TCPConnector, ssl=context or True)
        self._client = client(connector(limit=0, force_close=True))
        if proxy is not None:
            self._proxied = client(
                connector(limit=self._connections, keepalive_timeout=_KEEPALIVE_SECONDS)
            )
            return
        self._pool = Pool(
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            context=context,
            limit=self._connections,
            keepalive=_KEEPALIVE_SECONDS,
            connect=CONNECT_SECONDS,
        )

    async def close(self) -> None:
        for client in (self._client, self._proxied):
            if client is not None:
                await client.aclose()
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._client = self._proxied = None

    async def pooled(
        self, path: str, body: bytes, seconds: float, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """POST over the pool and await the reply for at most ``seconds``, queueing included.

        Raises:
            NoReply: no reply came.
        """
        if self.keys.exchanged:
            return await self._with_token(
                lambda more: self._pooled(path, body, seconds, more), headers
            )
        return await self._pooled(path, body, seconds, headers)

    async def _pooled(
        self, path: str, body: bytes, seconds: float, headers: Mapping[str, str] | None
    ) -> Reply:
        pool = self._pool
        if pool is None:
            return await self._request(self._proxied, "POST", path, body, seconds, headers)
        self._check_there()
        if self.limiter.closed:
            seconds = await self._wait(seconds)
        reply = await pool.post(self._head(path, len(body), headers), body, seconds)
        return self._taken(reply.status, reply.body, reply.headers)

    def _head(self, path: str, length: int, headers: Mapping[str, str] | None) -> bytes:
        """The head of a pooled request; but for its length it is made once."""
        key: _Key = (path, tuple(headers.items()) if headers else ())
        start = self._heads.get(key)
        if start is None:
            parts = urlsplit(self.address.url)
            sent = {
                "Host": parts.netloc,
                **self.address.headers,
                "Accept-Encoding": "identity",
                "User-Agent": "mtrl",
                **(headers or {}),
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
            start = f"POST {parts.path}{PREFIX}{path} HTTP/1.1\r\n{lines}Content-Length: ".encode()
            if len(self._heads) >= _MOST_HEADS:  # tokens come and go
                self._heads.clear()
            self._heads[key] = start
        return b"%b%d\r\n\r\n" % (start, length)

    async def single(
        self,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        *,
        returns: bool = False,
    ) -> Reply:
        """Make one request on a connection of its own.

        Args:
            returns: it gives back what the server holds for us. It does not wait while the server
                lets nobody send: a run that ends would leave it behind.

        Raises:
            NoReply: no reply came.
        """
        if self.keys.exchanged:
            return await self._with_token(
                lambda more: self._single(method, path, body, seconds, more, returns), headers
            )
        return await self._single(method, path, body, seconds, headers, returns)

    async def exchange(self, path: str, body: bytes, seconds: float) -> Reply:
        """One request that shows the user's own key, for the token that will stand for it."""
        return await self._single("POST", path, body, seconds, None)

    async def _with_token(
        self,
        send: Callable[[Mapping[str, str]], Awaitable[Reply]],
        headers: Mapping[str, str] | None,
    ) -> Reply:
        await self.keys.renew()
        token = self.keys.current or ""
        reply = await send({**(headers or {}), HEADER: token})
        if not reply.token_refused:
            return reply
        await self.keys.renew(rejected=token)
        return await send({**(headers or {}), HEADER: self.keys.current or ""})

    async def _wait(self, seconds: float) -> float:
        """Wait until the limiter opens. What is left of ``seconds``, or `NoReply`."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if await self.limiter.wait(self._unended):
                    return seconds - (time.monotonic() - began)
        says = f"the server lets nobody send now ({self.limiter.says})"
        raise NoReply(Verdict("transient", says, 429))

    async def _single(
        self,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        headers: Mapping[str, str] | None,
        returns: bool = False,
    ) -> Reply:
        return await self._request(self._client, method, path, body, seconds, headers, returns)

    async def _request(
        self,
        client: "httpx.AsyncClient | None",
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        headers: Mapping[str, str] | None,
        returns: bool = False,
    ) -> Reply:
        import aiohttp
        import httpx

        if client is None:
            raise NoReply(Verdict("permanent", "the connection to the server was closed"))
        self._check_there()
        if self.limiter.closed and not returns:
            seconds = await self._wait(seconds)
        if seconds <= 0:  # the event loop was held up; what is not sent is not unknown
            raise NoReply(Verdict("transient", "no time was left to send it"))
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        content: bytes | AsyncIterator[bytes] | None = body
        headers = dict(headers or {})
        if body is not None and len(body) > _PIECE:
            content = _pieces(body)
            headers["Content-Length"] = str(len(body))
        try:
            async with asyncio.timeout(seconds):
                async with client.stream(
                    method, path, content=content, headers=headers, timeout=timeout
                ) as reply:
                    return self._taken(reply.status_code, await _whole(reply), reply.headers)
        except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as error:
            raise NoReply(judge_exception(error)) from None

    def _check_there(self) -> None:
        if (says := self.gone()) is not None:
            raise NoReply(Verdict("permanent", says))

    def _taken(self, status: int, body: bytes, headers: Mapping[str, str]) -> Reply:
        """A reply as the rest of mtrl may see it: what repeats a key does not get past here."""
        if status == 200:
            self.trouble.over()
        refused = status == 401 and "invalid_token" in headers.get("www-authenticate", "")
        body = self.keys.struck(body, said=status != 200)
        return Reply(status, body, headers.get("retry-after"), headers.get("content-type"), refused)

    def judge(self, reply: Reply, *, training: bool = False) -> Verdict:
        """Judge a reply that is not the one hoped for.

        A 429 closes the limiter for a while, and so does a 402.
        """
        verdict = judge_reply(
            reply.status, reply.body, retry_after=reply.retry_after, training=training
        )
        says = self.keys.without(verdict.says)
        if reply.status in (402, 429):
            self.limiter.hold(verdict.retry_after, says)
        return Verdict(verdict.outcome, says, verdict.status, verdict.retry_after)


async def _whole(reply: "httpx.Response") -> bytes:
    """The body. Raises: ReplyDamagedError, ReplyTooLargeError."""
    body = await gathered(reply.aiter_raw(), LARGEST_REPLY)
    if "content-encoding" not in reply.headers:
        return body
    return await asyncio.to_thread(unpacked, body, reply.headers, LARGEST_REPLY)
