"""Sampling on a Tinker server: one sampling session per policy, one budget per turn.

A sampling session binds a policy's URI on the server. It is created when the policy is first
used, once however many turns wait for it, and kept. A turn is POST ``asample``, then polls. It
changes nothing, so an attempt of unknown outcome is made again, counted, within the one budget
of the turn.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtrl_cli.rollout.ports import SampleRequest
from mtrl_cli.servers.errors import Budget, Verdict, says_context_full
from mtrl_cli.servers.promises import Denied, Done, Failed, Lost, await_promise
from mtrl_cli.servers.tinker_codec import MalformedReply, body_of, name_in, parse, sample_body
from mtrl_cli.servers.transport import NoReply, Reply, Transport

_ATTEMPTS = 10
_BASE = "base://"

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
    sample_reissues: int = 0
    """Sampling attempts made again."""
    polls: int = 0
    training_resends: int = 0
    """Training calls sent again with the same bytes, to a server known to dedupe them."""
    training_retries: int = 0
    """Training calls sent again after a sure refusal."""


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
    """

    def __init__(self, transport: Transport, session: str, seconds: float, counts: Counts) -> None:
        self._transport = transport
        self._session = session
        self._seconds = seconds
        self._counts = counts
        self._samplers: dict[str, asyncio.Task[_Sampler]] = {}
        self._created = 0

    async def close(self) -> None:
        tasks = list(self._samplers.values())
        self._samplers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(
        self, request: SampleRequest, *, prompt_logprobs: bool = False
    ) -> Mapping[str, Any] | Verdict:
        """The finished ``asample``'s result, or the verdict that ended its budget."""
        budget = Budget(self._seconds, _ATTEMPTS)
        while True:
            try:
                return await self._attempt(request, prompt_logprobs, budget)
            except _Attempt as error:
                verdict = error.verdict
            if verdict.outcome == "permanent" or says_context_full(verdict):
                return verdict
            pause = budget.pause(verdict.retry_after)
            if pause is None:
                return verdict
            self._counts.sample_reissues += 1
            await asyncio.sleep(pause)

    async def _attempt(
        self, request: SampleRequest, prompt_logprobs: bool, budget: Budget
    ) -> Mapping[str, Any]:
        sampler = await self._sampler(request.policy)
        body = sample_body(request, sampler.id, sampler.next_seq(), prompt_logprobs=prompt_logprobs)
        self._counts.samples += 1
        answer = await self._answer(
            lambda: self._transport.pooled("asample", body, budget.left, _INLINE)
        )
        if isinstance(answer, Verdict):
            if answer.status in (404, 410):  # the server forgot it, after a restart for example
                self._forget(request.policy, sampler)
                answer = Verdict("unknown", answer.says, answer.status)
            raise _Attempt(answer)
        if "sequences" in answer:
            return answer  # the server took the offer of _INLINE
        return await self._result(_request_id(answer), budget)

    async def _result(self, request_id: str, budget: Budget) -> Mapping[str, Any]:
        ending = await await_promise(
            self._transport.pooled,
            self._transport.judge,
            request_id,
            budget.deadline,
            self._polled,
        )
        match ending:
            case Done(result):
                return result
            case Lost(verdict):
                raise _Attempt(Verdict("unknown", verdict.says, verdict.status))
            case Failed(verdict) | Denied(verdict):
                raise _Attempt(verdict)
        last = f"; the last poll: {ending.says}" if ending.says else ""
        raise _Attempt(Verdict("permanent", f"no sample within {self._seconds:g} s{last}"))

    def _polled(self) -> None:
        self._counts.polls += 1

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
            return _Sampler(name_in(answer, "sampling_session_id"))
        except MalformedReply as error:
            raise _Attempt(Verdict("permanent", str(error))) from None

    async def _answer(self, send: Callable[[], Any]) -> Mapping[str, Any] | Verdict:
        try:
            reply: Reply = await send()
            if reply.status == 200:
                return parse(reply.body)
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
