"""Coming to a Tinker server and leaving it: what it offers, one session from open to finish.

Everything here is asked before anything is created, so a failure ends in one line that says what
was tried and what to change. What a server has no route for (404) it is not asked twice.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

from mtrl_cli.servers.errors import AuthError, Refused, ServerError, Verdict
from mtrl_cli.servers.keys import EMBEDDED_KEY, usable_token
from mtrl_cli.servers.reaching import check_offered, offered_models, reach
from mtrl_cli.servers.tinker import codec
from mtrl_cli.servers.tinker.formats import Formats
from mtrl_cli.servers.transport import NoReply, Reply, Transport
from mtrl_cli.servers.wording import one_line, picture

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 20.0
_EXCHANGE_SECONDS = 20.0
FINISH_SECONDS = 2.0

_FINISH = codec.body_of({"reason": {"type": "success"}, "detail": None})


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server says of itself. ``context``: the base model's window, where it is told."""

    context: int | None = None
    cancels: bool = False
    """It can be told to stop a sampling request."""


class Door:
    """Talks to a server before and after the work.

    Args:
        transport: open while it is used.
        key_variable: the environment variable that users keep the key in, for messages.
        formats: of the session.
    """

    def __init__(self, transport: Transport, key_variable: str, formats: Formats) -> None:
        self._transport = transport
        self._key_variable = key_variable
        self._formats = formats

    @property
    def _sdk_version(self) -> str:
        """The version of the official client whose bodies ours are like."""
        return "0.16.1" if self._formats.chosen == "json" else "0.38.0"

    @property
    def _url(self) -> str:
        return self._transport.address.url

    @property
    def _start(self) -> str:
        """How its server is started: the embedded one, for which alone there is this key, by us."""
        if self._key_variable != EMBEDDED_KEY:
            return "start it"
        port = urlsplit(self._url).port
        return "start it (mtrl serve" + (f" --port {port})" if port else ")")

    async def look(self, base_model: str) -> Offer:
        """Check the key and the base model; nothing is opened or changed.

        Raises:
            UsageError: the base model is not served.
            ServerError: the server cannot be reached, or does not let us in.
        """
        await self._show_token()
        context = await self._context_of(base_model)
        return Offer(context=context, cancels=await self._cancels())

    async def _show_token(self) -> None:
        """Show a token in place of the user's key, where the server wants that."""
        body = codec.body_of({"sdk_version": self._sdk_version})
        reply = await self._reach("POST", "client/config", body)
        if reply is None or reply.get("pjwt_auth_enabled") is not True:
            return
        try:
            await self._transport.keys.use(self._exchange)
        except NoReply as error:
            if error.verdict.status is None:
                raise ServerError(f"{self._url} gave no token for the API key: {error}") from None
            raise self._turned_away(error.verdict) from None

    async def _exchange(self) -> str:
        """A token for the user's key.

        Raises:
            NoReply: there is none. What it was wanted for was not sent, so it is never unknown.
        """
        try:
            reply = await self._transport.exchange("auth/token", b"{}", _EXCHANGE_SECONDS)
        except NoReply as error:
            raise NoReply(replace(error.verdict, outcome="transient")) from None
        if reply.status != 200:
            verdict = self._transport.judge(reply, training=True)
            if verdict.outcome == "unknown":
                verdict = replace(verdict, outcome="transient")
            raise NoReply(verdict)
        try:
            token = usable_token(codec.parse(reply.body).get("jwt"))
        except codec.MalformedReply as error:
            raise NoReply(Verdict("transient", str(error))) from None
        if token is None:
            raise NoReply(Verdict("permanent", "the server's token is none"))
        return token

    async def _context_of(self, base_model: str) -> int | None:
        reply = await self._reach("GET", "get_server_capabilities", None)
        # Older servers do not have the route; the base model is then checked at first use.
        offered = offered_models(reply or {})
        if not offered:
            return None
        check_offered(base_model, offered, self._url)
        window = offered[base_model].get("max_context_length")
        return window if type(window) is int and window > 0 else None

    async def _cancels(self) -> bool:
        body = codec.body_of({"sdk_version": self._sdk_version})
        reply = await self._reach("POST", "client/dynamic_config", body)
        return reply is not None and reply.get("sample_cancel_enabled") is True

    async def open_session(self) -> str:
        body: dict[str, Any] = {
            "tags": [],
            "user_metadata": {},
            "sdk_version": self._sdk_version,
            "project_id": None,
        }
        reply = await self._reach("POST", "create_session", codec.body_of(body))
        if reply is None:
            raise ServerError(
                f"{self._url} is not a Tinker server (HTTP 404): correct server.base_url"
            )
        if reply.get("error_message"):
            raise ServerError(f"{self._url} opens no session: {self._told(reply['error_message'])}")
        if reply.get("warning_message"):
            log.warning("%s says: %s", self._url, self._told(reply["warning_message"]))
        try:
            return codec.name_in(reply, "session_id")
        except codec.MalformedReply as error:
            raise ServerError(f"{self._url} opened no session: {self._told(error)}") from None

    def _told(self, words: object) -> str:
        """What the server says, as one line without the keys."""
        words = str(words) if isinstance(words, str | codec.MalformedReply) else picture(words, 300)
        return one_line(self._transport.keys.without(words))

    async def finish_session(self, session: str) -> None:
        """Let the server free what the session holds now, and not when its beats have stopped.

        Best effort: some servers have no such route, and nothing depends on it.
        """
        path = f"sessions/{quote(session, safe='')}/finish"
        with contextlib.suppress(NoReply, TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await self._transport.single("POST", path, _FINISH, FINISH_SECONDS, returns=True)

    # One call.

    async def _reach(self, method: str, path: str, body: bytes | None) -> Mapping[str, Any] | None:
        """None for 404; every other failure ends in one line."""
        reply = await reach(
            self._transport,
            lambda unhappy: self._transport.judge(unhappy, training=True),
            method,
            path,
            body,
            seconds=_CONNECT_SECONDS,
            start=self._start,
        )
        if isinstance(reply, Verdict):
            raise self._turned_away(reply)
        return None if reply.status == 404 else self._object(reply)

    def _object(self, reply: Reply) -> Mapping[str, Any]:
        try:
            return codec.parse(reply.body)
        except codec.MalformedReply as error:
            raise ServerError(
                f"{self._url} is not a Tinker server ({self._told(error)}): correct server.base_url"
            ) from None

    def _turned_away(self, verdict: Verdict) -> ServerError:
        url = self._url
        if verdict.status in (401, 403):
            if self._transport.address.api_key is None:
                return AuthError(
                    f"{url} wants an API key and none is set ({verdict.says}): "
                    f"set {self._key_variable}"
                )
            return AuthError(
                f"{url} does not take this API key ({verdict.says}): correct {self._key_variable}"
            )
        if verdict.status is not None and 300 <= verdict.status < 400:
            return Refused(f"{url} redirects ({verdict.says}): write its final address")
        return Refused(
            f"{url} does not let us in ({verdict.says})", transient=verdict.outcome == "transient"
        )
