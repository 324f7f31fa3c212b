"""The way to a Twinkle server: its headers, and one training request with its outcome.

A request of the server's own API is answered when its task has ended; there are no promises, no
sequence ids and no way to ask later. So it is sent on a connection of its own, once. What is
surely not executed may be sent again within the budget; what may have been is *unknown*.

Every request names the session twice: as the owner of the adapter, and as the key by which Ray
Serve finds the replica that holds it. With one id for both, a process that knows an adapter's
name, which begins with its session, also knows the way to it.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import AuthError, Refused, ServerError, Unknown, Verdict
from mtrl_cli.servers.tinker.codec import MalformedReply, parse_aside
from mtrl_cli.servers.transport import NoReply, Transport
from mtrl_cli.servers.twinkle.errors import AdapterLost, judge, says_adapter_lost

_ATTEMPTS = 8
_RETURNS = ("unload_model", "retrieve_future")
"""Kinds of calls that give back what the server holds for us, or await that."""
_NO_TOKEN = "EMPTY_TOKEN"


@dataclass(frozen=True, slots=True)
class TwinkleAddress(Address):
    """An address whose key is a bearer token. Without a token nothing could be resumed."""

    @staticmethod
    def of(base_url: str, api_key: str | None) -> "TwinkleAddress":
        address = Address.of(base_url, api_key)
        return TwinkleAddress(address.url, address.api_key)

    @property
    def headers(self) -> dict[str, str]:
        bearer = f"Bearer {self.api_key or _NO_TOKEN}"
        return {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Authorization": bearer,
            "Twinkle-Authorization": bearer,
        }


@dataclass(frozen=True, slots=True)
class Routes:
    """The paths of one base model's apps, below ``/api/v1/``."""

    base_model: str

    def model(self, call: str) -> str:
        return f"model/{self._name}/twinkle/{call}"

    def sampler(self, call: str) -> str:
        return f"sampler/{self._name}/twinkle/{call}"

    @property
    def unload(self) -> str:
        """The Tinker route, which frees the slot of a native adapter too; there is no other."""
        return f"model/{self._name}/tinker/unload_model"

    @property
    def _name(self) -> str:
        return quote(self.base_model.removeprefix("ms://"), safe="/")


def new_routing() -> str:
    """A routing id for what comes before the session."""
    return f"{time.strftime('%Y%m%d_%H%M%S')}-{uuid.uuid4().hex[:8]}"


def routing_headers(routing: str, session: str | None = None) -> dict[str, str]:
    headers = {
        "X-Request-ID": routing,
        "X-Ray-Serve-Request-Id": routing,
        "serve_multiplexed_model_id": routing,
        "Serve-Multiplexed-Model-Id": routing,
    }
    if session is not None:
        headers["X-Twinkle-Session-Id"] = session
    return headers


def session_of(model: str) -> str:
    """The session in an adapter's full name, ``{session}-{adapter}``."""
    return model.rpartition("-")[0]


class Sender:
    """Sends the requests of training calls.

    Args:
        transport: open.
        seconds: the budget of one request, repetitions after a sure refusal included.
    """

    def __init__(self, transport: Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds

    async def post(
        self,
        kind: str,
        path: str,
        body: bytes,
        model: str,
        *,
        repeat: bool = True,
        seconds: float | None = None,
    ) -> Any:
        """The reply's JSON.

        Args:
            kind: what it is, for messages.
            model: the adapter's full name.
            repeat: it may be sent again when it surely was not executed.

        Raises:
            Refused: it surely was not executed. `AdapterLost` where the adapter is gone.
            Unknown: it may have been executed.
        """
        headers = routing_headers(session_of(model), session_of(model))
        budget = self._transport.budget(self._seconds if seconds is None else seconds, _ATTEMPTS)
        while True:
            answer = await self._send(path, body, headers, budget.left, kind in _RETURNS)
            if not isinstance(answer, Verdict):
                return answer
            pause = None
            if repeat and answer.outcome == "transient":
                pause = budget.pause(answer)
            anyway = kind in _RETURNS
            if pause is None or not await self._transport.pause(pause, anyway=anyway):
                raise self._failure(kind, model, answer)

    async def _send(
        self, path: str, body: bytes, headers: Mapping[str, str], seconds: float, returns: bool
    ) -> Any | Verdict:
        try:
            reply = await self._transport.single(
                "POST", path, body, seconds, headers, returns=returns
            )
            if reply.status != 200:
                return judge(self._transport, reply, training=True)
            return None if reply.body.strip() == b"null" else await parse_aside(reply.body)
        except NoReply as error:
            return error.verdict
        except MalformedReply as error:
            return Verdict("unknown", self._transport.keys.without(str(error)))

    def _failure(self, kind: str, model: str, verdict: Verdict) -> ServerError:
        url = self._transport.address.url
        if says_adapter_lost(verdict):
            return AdapterLost(
                f"{url} no longer has the adapter {model}: it expired, or the server started "
                "anew. Its weights and optimizer state are lost; a resume loads the last saved "
                f"state into a new one ({verdict.says})",
                status=404,
            )
        if verdict.status in (401, 403):
            return AuthError(f"{url} does not take the API key for {kind}: {verdict.says}")
        if verdict.outcome == "unknown":
            return Unknown(f"{kind} may have been executed by {url}: {verdict.says}")
        return Refused(
            f"{kind} was not executed by {url}: {verdict.says}",
            transient=verdict.outcome == "transient",
            retry_after=verdict.retry_after,
            status=verdict.status,
        )
