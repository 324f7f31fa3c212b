"""Twinkle's training calls that take more than one request.

**Create.** An adapter is added, once: a second request of that name would be answered with
"already exists" and take the live one down. Then template, processor, loss and optimizer are set.
Where that fails the adapter is given back, so that a refused call leaves no slot occupied.

**Publish.** The server keeps the newest sampler snapshot of an adapter and names it by the
second. Two snapshots of one second would share a name, and a sampler that caches by name would
go on with the old weights. So a second is let pass between two saves, and a name that has not
changed is not accepted: the same weights are saved again.

**Unload.** The one route that frees a slot answers with a promise.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mtrl_cli.servers.errors import Refused, ServerError, Unknown
from mtrl_cli.servers.interface import RETURN_SECONDS, Call
from mtrl_cli.servers.tinker.codec import MalformedReply, body_of, name_in
from mtrl_cli.servers.twinkle.transport import Sender
from mtrl_cli.servers.wording import one_line, picture

T = TypeVar("T")

_SECOND = 1.05
_SAVES = 3
_UNLOAD_SECONDS = RETURN_SECONDS


@dataclass(frozen=True, slots=True)
class TwinkleCall(Call[T]):
    """A call with its requests. ``body`` is that of the request that has the effect."""

    run: Callable[[Sender, Callable[[str], None]], Awaitable[T]] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a call."""

    kind: str
    path: str
    body: bytes


class Snapshots:
    """The sampler snapshots of this client's adapters, of which the newest alone is kept."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._saved: dict[str, float] = {}

    def newest_instead_of(self, policy: str) -> str | None:
        """The snapshot that has taken the place of ``policy``; None where it is still there."""
        for model, newest in self._newest.items():
            if policy.startswith(f"twinkle://{model}/") and policy != newest:
                return newest
        return None

    async def let_a_second_pass(self, model: str) -> None:
        since = time.monotonic() - self._saved.get(model, float("-inf"))
        if since < _SECOND:
            await asyncio.sleep(_SECOND - since)

    def is_new(self, model: str, uri: str) -> bool:
        """Note a save; whether its name is a new one."""
        self._saved[model] = time.monotonic()
        known = self._newest.get(model)
        self._newest[model] = uri
        return uri != known


async def create(
    sender: Sender, model: str, add: Step, settings: Sequence[Step], unload: Step
) -> str:
    """Add the adapter ``model`` and set it up.

    Raises:
        Refused, Unknown: see `Sender.post`. After an unknown outcome the slot may be taken.
    """
    try:
        reply = await sender.post(add.kind, add.path, add.body, model, repeat=False)
    except Unknown as error:
        raise Unknown(f"{error}; it may hold the slot of {model}") from None
    name = named(reply, "adapter_name", add.kind)
    if name != model:
        raise Unknown(f"{add.kind}: the server calls the adapter {name}, expected {model}")
    for step in settings:
        try:
            await sender.post(step.kind, step.path, step.body, model)
        except ServerError as error:
            raise await _given_back(sender, model, unload, error) from None
    return model


async def _given_back(
    sender: Sender, model: str, unload: Step, error: ServerError
) -> Refused | Unknown:
    status = error.status if isinstance(error, Refused) else None
    try:
        await free(sender, model, unload, lambda _: None)
    except ServerError as second:
        return Unknown(f"{error}; the adapter {model} could not be given back: {second}")
    return Refused(f"{error}; the adapter was given back", status=status)


async def publish(sender: Sender, model: str, save: Step, snapshots: Snapshots) -> str:
    """Save the sampler's weights; the URI is not the one before."""
    for _ in range(_SAVES):
        await snapshots.let_a_second_pass(model)
        reply = await sender.post(save.kind, save.path, save.body, model)
        uri = named(reply, "twinkle_path", save.kind)
        if snapshots.is_new(model, uri):
            return uri
    raise ServerError(
        f"the server has named {_SAVES} snapshots {uri}: samples of a new one could not be told "
        "from samples of the old one"
    )


async def free(sender: Sender, model: str, unload: Step, accepted: Callable[[str], None]) -> None:
    """Free the adapter's slot, and wait until it is free. The server does not mind a second
    time, nor a name that it does not know."""
    deadline = time.monotonic() + _UNLOAD_SECONDS
    reply = await sender.post(unload.kind, unload.path, unload.body, model, seconds=_UNLOAD_SECONDS)
    request = named(reply, "request_id", unload.kind)
    accepted(request)
    poll = body_of({"request_id": request, "allow_metadata_only": True})
    while (left := deadline - time.monotonic()) > 0:
        try:
            result = await sender.post(
                "retrieve_future", "retrieve_future", poll, model, seconds=left
            )
        except ServerError as error:
            if time.monotonic() >= deadline:
                break
            raise Unknown(
                f"{unload.kind} may have been executed: {error}", request=request
            ) from None
        if isinstance(result, dict) and (failed := result.get("error")):
            says = one_line(failed) if isinstance(failed, str) else picture(failed)
            raise Unknown(f"{unload.kind} failed: {says}", request=request)
        if not (isinstance(result, dict) and result.get("type") == "try_again"):
            return
        await asyncio.sleep(0.05)
    raise Unknown(f"{unload.kind} has not ended within {_UNLOAD_SECONDS:g} s", request=request)


def named(reply: object, key: str, call: str) -> str:
    """A name in the reply to a call that was executed. Raises: Unknown: it is not there."""
    try:
        if not isinstance(reply, dict):
            raise MalformedReply(f"the reply has no {key!r}")
        return name_in(reply, key)
    except MalformedReply as error:
        raise Unknown(f"{call} was executed, but {error}") from None
