"""What is asked of a Twinkle server before anything is trained: its models, a session, a template.

Every failure here ends in one line that says what was tried and what to change.
"""

from collections.abc import Mapping
from typing import Any

from mtrl_cli.servers.errors import AuthError, Refused, ServerError, Verdict
from mtrl_cli.servers.reaching import check_offered, offered_models, reach
from mtrl_cli.servers.tinker.codec import MalformedReply, body_of, name_in, parse
from mtrl_cli.servers.transport import Transport
from mtrl_cli.servers.twinkle.errors import judge
from mtrl_cli.servers.twinkle.transport import Routes, new_routing, routing_headers

_CONNECT_SECONDS = 30.0


class Gateway:
    """The calls that open a connection.

    Args:
        transport: open when a call is made.
        routes: of the base model.
        key_variable: the environment variable that users keep the token in, for messages.
    """

    def __init__(self, transport: Transport, routes: Routes, key_variable: str) -> None:
        self._transport = transport
        self._routes = routes
        self._key_variable = key_variable
        self._url = transport.address.url
        self._routing = new_routing()

    async def check_model(self) -> None:
        reply = await self._reach("GET", "twinkle/get_server_capabilities", None)
        if offered := offered_models(reply):
            check_offered(self._routes.base_model, offered, self._url)

    async def create_session(self) -> str:
        reply = await self._reach("POST", "twinkle/create_session", body_of({"metadata": None}))
        try:
            return name_in(reply, "session_id")
        except MalformedReply as error:
            raise ServerError(f"{self._url} opened no session: {error}") from None

    async def set_template(self, session: str, template: str) -> None:
        """See that both apps of the model answer, and set the sampler's template.

        The sampler has one template for all who use it; setting it again changes nothing.
        """
        await self._reach("POST", self._routes.model("create"), b"{}", session)
        await self._reach("POST", self._routes.sampler("create"), b"{}", session)
        fields = {"template_cls": template, "adapter_name": "", "model_id": self._routes.base_model}
        await self._reach("POST", self._routes.sampler("set_template"), body_of(fields), session)

    async def _reach(
        self, method: str, path: str, body: bytes | None, session: str | None = None
    ) -> Mapping[str, Any]:
        """One call while connecting; every failure ends in one line."""
        reply = await reach(
            self._transport,
            lambda unhappy: judge(self._transport, unhappy, training=True),
            method,
            path,
            body,
            seconds=_CONNECT_SECONDS,
            headers=routing_headers(session or self._routing, session),
        )
        if isinstance(reply, Verdict):
            raise self._turned_away(path, reply)
        if reply.status == 404:
            raise self._not_twinkle(f"HTTP 404 for {path}")
        try:
            return parse(reply.body)
        except MalformedReply as error:
            raise self._not_twinkle(str(error)) from None

    def _not_twinkle(self, why: str) -> ServerError:
        return ServerError(
            f"{self._url} is no Twinkle server with this model ({why}): correct "
            "server.base_url and server.base_model"
        )

    def _turned_away(self, path: str, verdict: Verdict) -> ServerError:
        url = self._url
        if verdict.status in (401, 403):
            return AuthError(
                f"{url} does not take this token ({verdict.says}): correct {self._key_variable}"
            )
        return Refused(
            f"{url} does not let us in ({path}: {verdict.says})",
            transient=verdict.outcome == "transient",
        )
