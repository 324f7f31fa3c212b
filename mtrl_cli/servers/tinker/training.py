"""Training calls on a Tinker server: sent once, then polled.

Sending ends in one of three ways:

- the server names a request: *accepted*. From here polling may be repeated freely.
- the server, or the missing connection, says that nothing was executed: *refused*. If it may
  succeed later it is sent again within the call's one budget; that repeats nothing.
- the reply is lost: *unknown*. It is sent again only to a server declared to dedupe, only with a
  sequence id, and as the very same bytes. Once a reply was lost, a later refusal does not tell
  what became of the first request, so the call stays unknown unless a request is named.

A server that cannot read the format of a call has not executed it either: the call is written in
the other format, once, and the session stays with what was accepted (`formats`).

An accepted call whose execution fails is *refused* where the server calls it the user's fault: it
looked at the call and did not run it. A failure of the server's own may have happened half way,
so it is *unknown*. Servers without categories answer 400 to every failure; there, a call that
builds up or uses gradients is unknown, and one that creates, names or loads something is refused.
"""

import asyncio
import time
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from mtrl_cli.servers.budget import Budget
from mtrl_cli.servers.errors import AuthError, Refused, ServerError, Unknown, Verdict
from mtrl_cli.servers.interface import RETURN_SECONDS, Accepted, Call, Recalled
from mtrl_cli.servers.promises import Category, Denied, Done, Failed, Lost, await_promise
from mtrl_cli.servers.tinker.codec import MalformedReply, name_in, parse, parse_aside
from mtrl_cli.servers.tinker.formats import UNREADABLE, Formats, Result
from mtrl_cli.servers.tinker.sampling import Counts
from mtrl_cli.servers.transport import NoReply, Reply, Transport

T = TypeVar("T")

_ATTEMPTS = 8
_SUBMIT_SECONDS = 120.0
_GRADIENTS = ("forward_backward", "optim_step")
_FOLDERS = {"publish": "sampler_weights", "save_state": "weights"}
_LIST_SECONDS = 10.0


class Training:
    """Executes training calls, one budget each.

    Args:
        transport: open.
        seconds: the budget of one call, polls included.
        dedupes: the server executes one sequence id once.
        formats: of the session.
    """

    def __init__(
        self,
        transport: Transport,
        seconds: float,
        *,
        dedupes: bool,
        counts: Counts,
        formats: Formats,
    ) -> None:
        self._transport = transport
        self._seconds = seconds
        self._dedupes = dedupes
        self._counts = counts
        self._formats = formats

    async def execute(self, call: Call[T], accepted: Accepted) -> T:
        """See `interface.TrainingService.execute`."""
        before = self._counts.training_resends
        try:
            return await self._execute(call, accepted)
        except Unknown as error:
            again = self._counts.training_resends - before
            told = f"sent again {again} times, as the same call" if again else "not sent again"
            raise Unknown(
                f"{error}; it was {told}", request=error.request, failed=error.failed
            ) from None

    async def _execute(self, call: Call[T], accepted: Accepted) -> T:
        deadline = time.monotonic() + self._seconds
        request = await self._submit(call)
        accepted(request)
        result = await self._result(call, request, deadline)
        try:
            return await asyncio.to_thread(call.decode, result)  # it may be a batch's logprobs
        except MalformedReply as error:
            raise self._unknown(call, str(error), request) from None

    # Sending.

    async def _submit(self, call: Call[Any]) -> str:
        # A server that is away gets less time for what would be given back to it.
        seconds = min(self._seconds, RETURN_SECONDS) if _returns(call) else self._seconds
        budget = self._transport.budget(seconds, _ATTEMPTS)
        lost: str | None = None
        unread: Verdict | None = None
        while True:
            answer = await self._send(call, budget)
            if isinstance(answer, str):
                if call.kind == "forward_backward":  # the others are JSON on every server
                    self._formats.accepted(call.content_type)
                return answer
            if lost is None and answer.status in UNREADABLE:
                if unread is None and call.rewritten is not None:
                    unread = answer
                    call = await asyncio.to_thread(call.rewritten)
                    continue
                answer = unread or answer  # it says more than that the second format is unknown
            if lost is None and answer.outcome == "unknown":
                lost = answer.says
            if lost is None:
                again = answer.outcome == "transient"
            else:
                again = self._may_resend(call) and answer.outcome != "permanent"
            pause = budget.pause(answer) if again else None
            anyway = lost is not None or _returns(call)
            if pause is None or not await self._transport.pause(pause, anyway=anyway):
                if lost is not None:
                    raise self._unknown(call, lost)
                raise self._refused(call, answer)
            self._counts.training_resends += lost is not None

    def _may_resend(self, call: Call[Any]) -> bool:
        return self._dedupes and call.seq is not None

    async def _send(self, call: Call[Any], budget: Budget) -> str | Verdict:
        """The id of the accepted request, or what became of the attempt."""
        seconds = min(_SUBMIT_SECONDS, budget.left)
        try:
            headers = {"Content-Type": call.content_type}
            reply = await self._transport.single(
                "POST", call.path, call.body, seconds, headers, returns=_returns(call)
            )
            if reply.status != 200:
                return self._transport.judge(reply, training=True)
            return name_in(await parse_aside(reply.body), "request_id")
        except NoReply as error:
            return error.verdict
        except MalformedReply as error:
            return Verdict("unknown", str(error))

    # Awaiting.

    async def _result(self, call: Call[Any], request: str, deadline: float) -> Result:
        ending = await await_promise(
            partial(self._post, returns=_returns(call)),
            self._transport.judge,
            request,
            deadline,
            self._polled,
            self._transport.trouble,
        )
        match ending:
            case Done(result):
                return result
            case Failed(verdict, category) if not _may_have_run(call.kind, category):
                raise self._refused(call, verdict)
            case Failed(verdict):
                says = f"its execution failed: {verdict.says}"
                raise self._unknown(call, says, request, failed=True)
            case Lost(verdict):
                says = f"the server does not know the request any more ({verdict.says})"
                raise self._unknown(call, says, request)
            case Denied(verdict):
                raise self._unknown(call, f"its result cannot be read: {verdict.says}", request)
        says = f"no result within {self._seconds:g} s"
        raise self._unknown(
            call, f"{says}; the last poll: {ending.says}" if ending.says else says, request
        )

    async def _post(
        self, path: str, body: bytes, seconds: float, *, returns: bool = False
    ) -> Reply:
        headers = {"Accept": self._formats.accept}
        return await self._transport.single("POST", path, body, seconds, headers, returns=returns)

    def _polled(self) -> None:
        self._counts.polls += 1

    # What became of a call.

    async def find_saved(self, call: Call[str]) -> str | None:
        """The URI of a checkpoint by the name that ``call`` gives it, from the model's list. A
        name is given once, and the calls of a model are executed in order: what bears it holds
        the weights that it was meant for."""
        kind, name = _FOLDERS[call.kind], parse(call.body).get("path")
        path = f"training_runs/{quote(call.model or '', safe='')}/checkpoints"
        try:
            reply = await self._transport.single("GET", path, None, _LIST_SECONDS)
            listed = parse(reply.body).get("checkpoints") if reply.status == 200 else None
        except (NoReply, MalformedReply):
            return None
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, dict) and item.get("checkpoint_id") == f"{kind}/{name}":
                try:
                    return name_in(item, "tinker_path")
                except MalformedReply:
                    return None
        return None

    async def recall(self, kind: str, request: str, seconds: float) -> Recalled:
        deadline = time.monotonic() + seconds
        ending = await await_promise(
            self._post,
            self._transport.judge,
            request,
            deadline,
            self._polled,
            self._transport.trouble,
        )
        match ending:
            case Done():
                return "done"
            case Failed(_, category) if not _may_have_run(kind, category):
                return "refused"
        return "unknown"

    # Words.

    def _refused(self, call: Call[Any], verdict: Verdict) -> ServerError:
        where, says = self._transport.address.url, self._transport.keys.without(verdict.says)
        if verdict.status in (401, 403):
            return AuthError(f"{where} does not take the API key for {call.kind}: {says}")
        return Refused(
            f"{_name(call)} was not executed by {where}: {says}",
            transient=verdict.outcome == "transient",
            retry_after=verdict.retry_after,
            status=verdict.status,
        )

    def _unknown(
        self, call: Call[Any], says: str, request: str | None = None, *, failed: bool = False
    ) -> Unknown:
        known = "" if request is None else f" as request {request}"
        where, told = self._transport.address.url, self._transport.keys.without(says)
        return Unknown(
            f"{_name(call)} may have been executed{known} by {where}: {told}",
            request=request,
            failed=failed,
        )


def _returns(call: Call[Any]) -> bool:
    """Whether it gives back what the server holds for us."""
    return call.kind == "unload_model"


def _may_have_run(kind: str, category: Category | None) -> bool:
    """Whether a call that failed may have had an effect; see the module's docstring."""
    return category != "user" and (category is not None or kind in _GRADIENTS)


def _name(call: Call[Any]) -> str:
    return call.kind if call.seq is None else f"{call.kind} {call.seq}"
