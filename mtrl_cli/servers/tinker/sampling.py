"""Sampling on a Tinker server: one sampling session per policy, one budget per turn.

A sampling session binds a policy's URI on the server. It is created when the policy is first
used, once however many turns wait for it, and kept. A turn is POST ``asample``, then polls. It
changes nothing, so an attempt of unknown outcome is made again, counted, within the one budget
of the turn. A request that is given up is cancelled on servers that can.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtrl_cli.rollout.ports import SampleRequest
from mtrl_cli.servers.budget import Budget
from mtrl_cli.servers.errors import Verdict, says_context_full
from mtrl_cli.servers.promises import Denied, Done, Failed, Lost, await_promise
from mtrl_cli.servers.tinker.codec import MalformedReply, body_of, name_in, sample_body
from mtrl_cli.servers.tinker.formats import Formats, Packed, Result, read_result, unpacked
from mtrl_cli.servers.transport import NoReply, Reply, Transport

_ATTEMPTS = 10
_BASE = "base://"
_CANCEL_SECONDS = 2.0

# RFC 7240: a server that knows it may answer with the result instead of a promise, which halves
# the requests of a turn; to every other server it means nothing.
_INLINE = {"Prefer": "wait=30"}


def base_uri(base_model: str) -> str:
    """The URI that stands for a base model among policies."""
    return _BASE + base_model


@dataclass(slots=True)
class Counts:
    """What a client did; read by the run's report."""

    samples: int = 0
    polls: int = 0
    cancels: int = 0
    """Sampling requests that the server was told to stop."""
    training_resends: int = 0
    """Training calls sent again with the same bytes, to a server known to dedupe them."""


@dataclass(slots=True)
class _Sampler:
    id: str
    used: int = 0

    def next_seq(self) -> int:
        self.used += 1
        return self.used - 1


class _Attempt(Exception):  # noqa: N818
    """A failed attempt, judged."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.says)
        self.verdict = verdict


class Sampling:
    """Runs ``asample`` calls for one session.

    Args:
        transport: open.
        session: the session's id.
        seconds: the budget of one turn, polls included.
        formats: of the session.
        cancels: the server can be told to stop a request.
        seed_bits: how many bits of a seed the server takes; only the lowest are sent.
    """

    def __init__(
        self,
        transport: Transport,
        session: str,
        seconds: float,
        counts: Counts,
        formats: Formats,
        *,
        cancels: bool,
        seed_bits: int,
    ) -> None:
        self._transport = transport
        self._session = session
        self._seconds = seconds
        self._counts = counts
        self._formats = formats
        self._cancels = cancels
        self._seed_mask = (1 << seed_bits) - 1
        self._cancelling: set[asyncio.Task[None]] = set()
        self._samplers: dict[str, asyncio.Task[_Sampler]] = {}
        self._created = 0

    async def close(self) -> None:
        tasks = list(self._samplers.values())
        self._samplers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=_CANCEL_SECONDS)
            for late in self._cancelling:
                late.cancel()

    async def run(
        self, request: SampleRequest, *, prompt_logprobs: bool = False
    ) -> Result | Verdict:
        """The finished ``asample``'s result, or the verdict that ended its budget."""
        budget = self._transport.budget(self._seconds, _ATTEMPTS)
        while True:
            try:
                return await self._attempt(request, prompt_logprobs, budget)
            except _Attempt as error:
                verdict = error.verdict
            if verdict.outcome == "permanent" or says_context_full(verdict):
                return verdict
            pause = budget.pause(verdict)
            if pause is None:
                return verdict
            await asyncio.sleep(pause)

    async def _attempt(
        self, request: SampleRequest, prompt_logprobs: bool, budget: Budget
    ) -> Result:
        sampler = await self._sampler(request.policy)
        body = sample_body(
            request,
            sampler.id,
            sampler.next_seq(),
            seed=request.seed & self._seed_mask,
            prompt_logprobs=prompt_logprobs,
        )
        self._counts.samples += 1
        answer = await self._answer(
            lambda: self._transport.pooled("asample", body, budget.left, _INLINE)
        )
        if isinstance(answer, Verdict):
            if answer.status in (404, 410):  # the server forgot it, after a restart for example
                self._forget(request.policy, sampler)
                answer = Verdict("unknown", answer.says, answer.status)
            raise _Attempt(answer)
        if isinstance(answer, Packed) or "sequences" in answer:
            return answer  # the server took the offer of _INLINE
        return await self._result(_request_id(answer), budget)

    async def _result(self, request_id: str, budget: Budget) -> Result:
        try:
            ending = await await_promise(
                self._poll,
                self._transport.judge,
                request_id,
                budget.deadline,
                self._polled,
                self._transport.trouble,
            )
        except asyncio.CancelledError:
            self._cancel(request_id)
            raise
        match ending:
            case Done(result):
                return result
            case Lost(verdict):
                raise _Attempt(Verdict("unknown", verdict.says, verdict.status))
            case Failed(verdict) | Denied(verdict):
                raise _Attempt(verdict)
        self._cancel(request_id)
        last = f"; the last poll: {ending.says}" if ending.says else ""
        raise _Attempt(Verdict("permanent", f"no sample within {self._seconds:g} s{last}"))

    async def _poll(self, path: str, body: bytes, seconds: float) -> Reply:
        if self._formats.chosen == "json":  # what the transport asks for anyway
            return await self._transport.pooled(path, body, seconds)
        return await self._transport.pooled(path, body, seconds, {"Accept": self._formats.accept})

    def _polled(self) -> None:
        self._counts.polls += 1

    def _cancel(self, request_id: str) -> None:
        """Tell the server that nobody waits for a request any more; best effort."""
        if self._cancels:
            task = asyncio.get_running_loop().create_task(self._send_cancel(request_id))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)
            self._counts.cancels += 1

    async def _send_cancel(self, request_id: str) -> None:
        with contextlib.suppress(NoReply):
            body = body_of({"request_id": request_id})
            await self._transport.pooled("cancel_future", body, _CANCEL_SECONDS)

    # Sampling sessions.

    async def _sampler(self, policy: str) -> _Sampler:
        task = self._samplers.get(policy)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._create(policy))
            task.add_done_callback(lambda done: self._settle(policy, done))
            self._samplers[policy] = task
        # Shielded: the session is everybody's, not the first asker's.
        return task.result() if task.done() else await asyncio.shield(task)

    def _settle(self, policy: str, task: "asyncio.Task[_Sampler]") -> None:
        if (task.cancelled() or task.exception() is not None) and (
            self._samplers.get(policy) is task
        ):
            del self._samplers[policy]

    def _forget(self, policy: str, sampler: _Sampler) -> None:
        task = self._samplers.get(policy)
        if task is not None and task.done() and task.result() is sampler:
            del self._samplers[policy]

    async def _create(self, policy: str) -> _Sampler:
        body = {"session_id": self._session, "sampling_session_seq_id": self._created}
        self._created += 1
        if policy.startswith(_BASE):
            body["base_model"] = policy.removeprefix(_BASE)
        else:
            body["model_path"] = policy
        raw = body_of(body)
        seconds = min(60.0, self._seconds)
        answer = await self._answer(
            lambda: self._transport.single("POST", "create_sampling_session", raw, seconds)
        )
        if isinstance(answer, Verdict):
            raise _Attempt(Verdict(answer.outcome, f"{policy}: {answer.says}", answer.status))
        try:
            return _Sampler(name_in(unpacked(answer), "sampling_session_id"))
        except MalformedReply as error:
            raise _Attempt(Verdict("permanent", str(error))) from None

    async def _answer(self, send: Callable[[], Any]) -> Result | Verdict:
        try:
            reply: Reply = await send()
            if reply.status == 200:
                return await read_result(reply.body, reply.content_type)
            return self._transport.judge(reply)
        except NoReply as error:
            return error.verdict
        except MalformedReply as error:
            return Verdict("unknown", str(error))


def _request_id(answer: Mapping[str, Any]) -> str:
    try:
        return name_in(answer, "request_id")
    except MalformedReply as error:
        raise _Attempt(Verdict("unknown", str(error))) from None
