"""OpenEnv environments behind a URL: one WebSocket session per trajectory.

A server holds so many sessions and refuses the next one. That is no failure: whoever wants one
waits, in order of arrival, and only the first in line knocks: when a session of ours is returned,
and otherwise after pauses that grow, with jitter, because other clients return theirs too. All of
it within the deadline of an open.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.interface import (
    Deadlines,
    Rules,
    TaskEnvironment,
    Watch,
    check_adapter,
)
from mtrl_cli.envs.openenv_wire import LARGEST_FRAME, ServerFull, WireSession
from mtrl_cli.errors import MtrlError
from mtrl_cli.foreign import line, untrusted
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import Environment, InfrastructureFailure

if TYPE_CHECKING:
    from aiohttp import ClientSession, StreamReader, TraceRequestRedirectParams

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_BUSY = (429, 503)
"""Statuses of a proxy in front of a full server."""

REMEDY = "the server ends it when it sees that the connection is gone; if it does not, restart it"


class RemoteFactory:
    """`mtrl_cli.rollout.ports.EnvironmentFactory` over an OpenEnv server.

    Args:
        base_url: the server's address, ``http://`` or ``https://``.
        headers: sent with every connection; they may hold secrets.
        check_server: raises when the server is known to have ended, and the run with it.
    """

    def __init__(
        self,
        base_url: str,
        adapter: TaskAdapter,
        *,
        headers: Mapping[str, str] | None = None,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        rules: Rules = Rules(),  # noqa: B008 - frozen
        watch: Watch | None = None,
        check_server: Callable[[], None] = lambda: None,
    ) -> None:
        check_adapter(adapter)
        self._check_server = check_server
        self._url = base_url.rstrip("/")
        self.place = without_password(self._url)
        self._adapter, self._rules, self._watch = adapter, rules, watch or Watch()
        self._deadlines = deadlines
        self._headers = dict(headers or {})
        self._client: ClientSession | None = None
        self._door = asyncio.Lock()
        """Held by who knocks at a full server."""
        self._in_line = 0
        self._returned = asyncio.Event()

    async def check(self) -> None:
        """Reach the server, without making anything there.

        Raises:
            MtrlError: it cannot be reached, refuses us, or is no OpenEnv server.
        """
        from aiohttp import ClientError

        client = self._made()
        try:
            async with (
                asyncio.timeout(self._deadlines.open),
                client.get(f"{self._url}/schema") as answer,
            ):
                schema = await _whole(answer.content)
                status = answer.status
        except (ClientError, OSError, ValueError) as error:
            late = isinstance(error, TimeoutError)
            why = untrusted(error) or ("no answer in time" if late else line(error))
            raise MtrlError(f"env.base_url: {self.place} cannot be reached: {why}") from error
        finally:
            await self.close()
        if status in (401, 403):
            raise MtrlError(
                f"env.base_url: {self.place} refuses us (status {status}); set env.api_key or"
                " env.headers"
            )
        if status in _BUSY:
            return
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(schema)
            if status == 200 and isinstance(said, dict) and "action" in said:
                return
        raise MtrlError(
            f"env.base_url: {self.place} is no OpenEnv server (/schema: status {status}); give the"
            " address under which its /ws is found"
        )

    def lender(self) -> Lender[Environment]:
        return Lender(
            "env_session",
            lambda key: self.open(),
            lambda environment: environment.close(),
            external=True,
            place=self.place,
            identify=_connection,
            remedy=lambda _: REMEDY,
        )

    async def open(self) -> TaskEnvironment:
        """Raises: InfrastructureFailure: no session was to be had within the deadline."""
        seconds = self._deadlines.open
        deadline = asyncio.timeout(seconds)
        refused = ""
        try:
            async with deadline:
                if not self._in_line:
                    try:
                        return await self._knock()
                    except ServerFull as full:
                        refused = f": {line(full)}"
                self._watch.saw(
                    "waits_for_capacity",
                    f"the environment server is full{refused}; new episodes wait for the end of"
                    " others. Set run.concurrency to the number of sessions it allows",
                )
                return await self._wait_in_line()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            why = f"it is full{refused}" if self._in_line or refused else "it does not answer"
            raise InfrastructureFailure(
                f"{self.place}: no session within env.open_timeout = {seconds:g} s; {why}"
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _wait_in_line(self) -> TaskEnvironment:
        self._in_line += 1
        try:
            async with self._door:
                pause = _FIRST_PAUSE
                while True:
                    self._returned.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause * random.uniform(0.5, 1.5)):
                            await self._returned.wait()
                    with contextlib.suppress(ServerFull):
                        return await self._knock()
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._in_line -= 1

    async def _knock(self) -> TaskEnvironment:
        """One attempt.

        Raises:
            ServerFull
            InfrastructureFailure: there is no server, or it does not want us.
        """
        from aiohttp import ClientError, WSServerHandshakeError

        self._check_server()
        try:
            socket = await self._made().ws_connect(f"{self._url}/ws", max_msg_size=LARGEST_FRAME)
        except WSServerHandshakeError as error:
            if error.status in _BUSY:
                raise ServerFull(f"status {error.status}") from error
            raise InfrastructureFailure(
                f"{self.place}: its /ws takes no WebSocket (status {error.status})"
            ) from error
        except (ClientError, OSError) as error:
            raise InfrastructureFailure(f"{self.place}: {line(error)}") from error
        session = WireSession(self.place, socket, self._deadlines, self._returned.set)
        try:
            await session.greet(self._deadlines.open)
        except BaseException:
            session.abandon()
            raise
        return TaskEnvironment(session, self._adapter, self.place, self._rules, self._watch)

    def _made(self) -> "ClientSession":
        if self._client is None:
            from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

            redirects = TraceConfig()
            redirects.on_request_redirect.append(_stays)
            self._client = ClientSession(
                trace_configs=[redirects],
                connector=TCPConnector(limit=0),
                headers=self._headers,
                timeout=ClientTimeout(total=None),
            )
        return self._client


async def _whole(content: "StreamReader") -> bytes:
    """Raises: ValueError: it does not end."""
    body = b""
    async for piece in content.iter_chunked(2**16):
        body += piece
        if len(body) > LARGEST_FRAME:
            raise ValueError(f"its /schema is longer than {LARGEST_FRAME:,} bytes")
    return body


async def _stays(session: object, context: object, redirect: "TraceRequestRedirectParams") -> None:
    """Follow no redirect to another host: ``env.headers`` would go there too.

    Raises:
        ClientError: it leads to one.
    """
    from aiohttp import ClientError
    from yarl import URL

    try:
        host = redirect.url.join(URL(redirect.response.headers.get("Location", ""))).host
    except ValueError:
        return  # no address, which is told by who would follow it
    if host != redirect.url.host:
        raise ClientError(f"it redirects to {host}: write the final address")


def without_password(url: str) -> str:
    """An address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _connection(environment: Environment) -> str | None:
    session = getattr(environment, "session", None)
    return session.id if isinstance(session, WireSession) else None
