"""Sampling on a Twinkle server: the turns of a moment in one call.

The server runs one sampling task of a token at a time, whatever is sent in parallel, but a task
may hold many inputs, which its engine samples together. So one call is in flight at a time; what
arrives meanwhile, and what arrives within a few milliseconds of it, waits for the next one. A
call takes turns that share the policy and the sampling parameters, ``max_tokens`` included, in
the order in which they came, up to a number of prompt tokens.

A call that failed for good, or twice without a clear reason, is made again in halves: one turn
that the server cannot sample must not take its neighbours with it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from mtrl_cli.rollout.ports import Sample, SampleRequest
from mtrl_cli.servers.errors import Verdict
from mtrl_cli.servers.tinker.codec import MalformedReply, parse_aside
from mtrl_cli.servers.transport import NoReply, Transport
from mtrl_cli.servers.twinkle.codec import sample_body, samples_of
from mtrl_cli.servers.twinkle.errors import judge

_ATTEMPTS = 10
_QUIET = 0.005
_LONGEST_GATHERING = 0.05

Answer = Sample | Verdict
AdapterUri = Callable[[str], str | None]


@dataclass(slots=True)
class SampleCounts:
    """What was sampled; read by the run's report."""

    calls: int = 0
    samples: int = 0


@dataclass(slots=True, eq=False)
class _Turn:
    request: SampleRequest
    answer: "asyncio.Future[Answer]" = field(repr=False)

    @property
    def kind(self) -> Hashable:
        request = self.request
        return request.policy, request.max_tokens, request.stop_ids, request.sampling

    def settle(self, answer: Answer) -> None:
        if not self.answer.done():  # else its waiter is gone
            self.answer.set_result(answer)


class Batcher:
    """Gathers turns into calls.

    Args:
        transport: open.
        path: of the ``sample`` route.
        headers: of every call.
        adapter_uri: from a policy's URI to what the server is sent; None is the base model.
        seconds: the budget of one call, repetitions included.
        tokens: the most prompt tokens of a call of more than one turn.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        headers: dict[str, str],
        adapter_uri: AdapterUri,
        *,
        seconds: float,
        tokens: int,
    ) -> None:
        self._transport = transport
        self._path = path
        self._headers = headers
        self._adapter_uri = adapter_uri
        self._seconds = seconds
        self._tokens = tokens
        self._waiting: list[_Turn] = []
        self._arrived = 0
        self._worker: asyncio.Task[None] | None = None
        self.counts = SampleCounts()

    async def sample(self, request: SampleRequest) -> Answer:
        """One turn's sample, or the verdict that ended its call."""
        turn = _Turn(request, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._arrived += 1
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await turn.answer

    async def close(self) -> None:
        """End the call in flight; whoever still waits is cancelled."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
        for turn in self._waiting:
            turn.answer.cancel()
        self._waiting.clear()

    async def _work(self) -> None:
        while self._waiting:
            await self._gather()
            batch = self._next()
            try:
                await self._carry_out(batch)
            except BaseException as error:
                for turn in batch:
                    if not turn.answer.done():
                        turn.answer.cancel() if isinstance(
                            error, asyncio.CancelledError
                        ) else turn.answer.set_exception(error)
                if isinstance(error, asyncio.CancelledError):
                    raise

    async def _gather(self) -> None:
        """Wait until nothing has arrived for a moment, or long enough."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LONGEST_GATHERING
        seen = -1
        while seen != self._arrived and loop.time() < end:
            seen = self._arrived
            await asyncio.sleep(_QUIET)

    def _next(self) -> list[_Turn]:
        """The oldest turn that is still wanted, and those that can share a call with it."""
        self._waiting = [turn for turn in self._waiting if not turn.answer.done()]
        batch: list[_Turn] = []
        rest: list[_Turn] = []
        tokens = 0
        for turn in self._waiting:
            size = len(turn.request.tokens)
            fits = not batch or (turn.kind == batch[0].kind and tokens + size <= self._tokens)
            if fits:
                batch.append(turn)
                tokens += size
            else:
                rest.append(turn)
        self._waiting = rest
        return batch

    async def _carry_out(self, batch: Sequence[_Turn]) -> None:
        batch = [turn for turn in batch if not turn.answer.done()]
        if not batch:
            return
        budget = self._transport.budget(self._seconds, _ATTEMPTS)
        unclear = 0
        while isinstance(answer := await self._call(batch, budget.left), Verdict):
            unclear += answer.outcome == "unknown" and answer.status is not None
            if len(batch) > 1 and (answer.outcome == "permanent" or unclear > 1):
                middle = len(batch) // 2
                await self._carry_out(batch[:middle])
                await self._carry_out(batch[middle:])
                return
            pause = None if answer.outcome == "permanent" else budget.pause(answer)
            if pause is None:
                for turn in batch:
                    turn.settle(answer)
                return
            await asyncio.sleep(pause)
        for turn, sample in zip(batch, answer, strict=True):
            turn.settle(sample)

    async def _call(self, batch: Sequence[_Turn], seconds: float) -> list[Sample] | Verdict:
        requests = [turn.request for turn in batch]
        body = sample_body(requests, self._adapter_uri(requests[0].policy))
        self.counts.calls += 1
        try:
            reply = await self._transport.pooled(self._path, body, seconds, self._headers)
            if reply.status != 200:
                return judge(self._transport, reply)
            samples = samples_of(await parse_aside(reply.body), len(batch))
        except NoReply as error:
            return error.verdict
        except MalformedReply as error:
            return Verdict("unknown", self._transport.keys.without(str(error)))
        self.counts.samples += len(samples)
        return samples
