"""The aiohttp session behind the pooled door of `transport`, set up for many small calls.

What a call does not need is off (cookies, the netrc), and every header that aiohttp would work
out by itself is given once. `sock_read` is not used: its timer runs on in idle connections, and
it says nothing that the total does not.

A connection is used again only if nothing arrived while it was idle. aiohttp hands out an idle
connection without looking (aio-libs/aiohttp#13656), and then what a server sent unasked would
answer the next call: one turn's tokens in place of another's.
"""

import ssl
from collections.abc import Mapping

import aiohttp
from aiohttp.connector import Connection


class StaleConnection(aiohttp.ClientConnectionError):
    """The request was not sent: the idle connection held something that nobody asked for."""


class _Request(aiohttp.ClientRequest):
    """Goes out only over a connection that holds nothing unread."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        protocol = conn.protocol
        if protocol is None or protocol.should_close:
            raise StaleConnection
        return await super().send(conn)


def open_session(
    headers: Mapping[str, str],
    *,
    limit: int,
    keepalive_seconds: float,
    context: ssl.SSLContext | None,
    proxy: str | None,
) -> aiohttp.ClientSession:
    """A session of at most ``limit`` connections; further calls wait their turn."""
    connector = aiohttp.TCPConnector(
        limit=limit, keepalive_timeout=keepalive_seconds, ssl=context or True
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={**headers, "Accept-Encoding": "identity", "User-Agent": "mtrl"},
        request_class=_Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=proxy,
    )
