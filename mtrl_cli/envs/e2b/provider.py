"""The only module that knows E2B's SDK: its calls, and what its errors mean.

The SDK's own retries are off: they would repeat a creation whose outcome is unknown, which leaves
sandboxes that nobody has the id of. What is left of them is connecting, which repeats nothing.
Its errors have many types (its own, httpx's, connectrpc's, json's, plain ones), so any exception
is judged: a creation was surely refused, or it may have happened.

The REST calls take twice the time that the SDK is given, as it adds a read and a write timeout.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.foreign import told

_MOST_CONNECTIONS = 4096
"""The SDK's default of 200 to one address dead-locks at 200 open streams over HTTP/1.1."""

_SPARE = 16
"""Connections beside the sandboxes' streams."""

_PERMANENT = (400, 401, 403, 404, 422)

Outcome = Literal["refused", "busy", "unreachable", "unknown"]
"""``refused``: for good. ``busy``: not now. ``unreachable``: it was never sent. All three: surely
not executed."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an error of a REST call means."""

    outcome: Outcome
    text: str
    limited: bool = False
    """A rate or a quota refused it (429), so that others must wait too."""
    retry_after: float | None = None
    """Seconds, where the service said so."""


@dataclass(frozen=True, slots=True)
class Found:
    """A live sandbox as the service lists it."""

    id: str
    metadata: Mapping[str, str]


class Provider:
    """E2B with one key.

    Raises:
        UsageError: the SDK is not installed, or the environment leads it astray.
    """

    def __init__(self, api_key: str, *, template: str, timeout: float, at_once: int = 1) -> None:
        """``timeout``: seconds for one REST call. ``at_once``: the most sandboxes held."""
        _check_environment(os.environ)
        self._sdk = _load()
        _check_connections(self._sdk, self.place, at_once)
        self._template = template
        self._timeout = timeout
        self._options: dict[str, Any] = {
            "api_key": api_key, "retries": 0, "request_timeout": timeout / 2
        }  # fmt: skip

    @property
    def place(self) -> str:
        """Where the sandboxes live."""
        domain = os.environ.get("E2B_DOMAIN") or "e2b.app"
        return "E2B at " + (os.environ.get("E2B_API_URL") or f"https://api.{domain}")

    async def check(self) -> None:
        """Raises: MtrlError: the service cannot be reached, or does not take the key."""
        try:
            await self.find({"mtrl": "check"})
        except Exception as error:
            raise MtrlError(f"{self.place}: {judged(error).text}") from error

    async def create(self, lifetime: int, metadata: Mapping[str, str], key: str) -> Any:
        """A new sandbox: the SDK's ``AsyncSandbox``.

        Args:
            lifetime: seconds after which the service ends it.
            key: the same for no other attempt, of ``[a-z0-9-]``.

        Raises: whatever the SDK raises; see `judged`.
        """
        return await self._bounded(
            self._sdk.AsyncSandbox.create(
                self._template,
                timeout=lifetime,
                metadata=dict(metadata),
                lifecycle={"on_timeout": "kill"},
                idempotency_key=key,
                **self._options,
            )
        )

    async def kill(self, sandbox: str) -> bool:
        """False when it was gone. Raises: whatever the SDK raises; repeating is harmless."""
        killed: bool = await self._bounded(self._sdk.AsyncSandbox.kill(sandbox, **self._options))
        return killed

    async def find(self, metadata: Mapping[str, str]) -> list[Found]:
        """The live sandboxes with this metadata. Raises: whatever the SDK raises."""
        query = self._sdk.SandboxQuery(metadata=dict(metadata))
        pages = self._sdk.AsyncSandbox.list(query=query, limit=100, **self._options)
        found = []
        while pages.has_next:
            page = await self._bounded(pages.next_items())
            found += [Found(info.sandbox_id, dict(info.metadata or {})) for info in page]
        return found

    async def _bounded(self, call: Any) -> Any:
        async with asyncio.timeout(self._timeout + 1.0):
            return await call


def judged(error: BaseException) -> Judgement:
    """What an error of a REST call says about its execution."""
    import e2b
    import httpx

    text = told(error)
    status, headers = _reply(error)
    after = _seconds(headers.get("retry-after"))
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return Judgement("unreachable", text)
    if isinstance(error, e2b.RateLimitException) or status == 429:
        return Judgement("busy", text, limited=True, retry_after=after)
    if isinstance(error, e2b.ServiceBusyException):
        return Judgement("busy", text, retry_after=after)
    if isinstance(error, e2b.AuthenticationException | e2b.InvalidArgumentException):
        return Judgement("refused", text)
    if isinstance(error, e2b.SandboxException) and status in _PERMANENT:
        return Judgement("refused", text)
    return Judgement("unknown", text)


def _reply(error: BaseException) -> tuple[int | None, Mapping[str, str]]:
    """Status and headers of the reply that led to an error.

    The SDK's exceptions carry a status at most. The reply stands in a frame that the error passed
    through, whatever it was that failed on it.
    """
    status: int | None = getattr(error, "status_code", None)
    step: TracebackType | None = error.__traceback__
    while step is not None:
        for name in ("res", "response"):
            reply: Any = step.tb_frame.f_locals.get(name)
            if hasattr(reply, "headers") and hasattr(reply, "status_code"):
                return int(reply.status_code), reply.headers
        step = step.tb_next
    return status, {}


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None  # a date; our own back-off will do


def _check_environment(environ: Mapping[str, str]) -> None:
    """Raises: UsageError."""
    if environ.get("E2B_DEBUG", "").lower() == "true":
        raise UsageError(
            "E2B_DEBUG is true: the SDK then creates no sandboxes and kills none; unset E2B_DEBUG"
        )
    if environ.get("E2B_API_URL") and not environ.get("E2B_SANDBOX_URL"):
        raise UsageError(
            "E2B_API_URL is set and E2B_SANDBOX_URL is not, which would send commands to E2B's own"
            " service; set both, or neither"
        )


def _check_connections(sdk: Any, place: str, at_once: int) -> None:
    """Over HTTP/1.1 every sandbox's stream takes a connection, and a call that finds none waits.

    Raises:
        UsageError: the limit was set too low, or the SDK was imported before us.
    """
    one_each = "http://" in place or os.environ.get("E2B_HTTP_VERSION") == "1.1"
    allowed = int(getattr(sdk.api, "max_connections", _MOST_CONNECTIONS))
    if one_each and allowed < at_once + _SPARE:
        raise UsageError(
            f"E2B's SDK opens at most {allowed} connections, too few for {at_once} sandboxes at"
            f" once over HTTP/1.1: export E2B_MAX_CONNECTIONS={max(_MOST_CONNECTIONS, 2 * at_once)}"
        )


def _load() -> Any:
    """The SDK, with room for a stream per sandbox; its limits are read when it is imported.

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("E2B_MAX_CONNECTIONS", str(_MOST_CONNECTIONS))
    try:
        import e2b
    except ModuleNotFoundError as error:
        if error.name != "e2b":
            raise
        raise UsageError(
            "env.kind: e2b needs E2B's SDK, which is not installed:"
            " python -m pip install 'mtrl-cli[e2b]'"
        ) from error
    return e2b
