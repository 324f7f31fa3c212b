"""The two worker threads: one samples, one trains, and neither waits for the other.

The sampling thread owns the engine's sampler. Requests that arrive while it steps join at its
next step, and everything in flight advances together (continuous batching). What a step finished
is encoded there and handed to the event loop in one call. The training thread runs jobs in the
order they were given, which keeps each model's calls in order. A job that fails ends its promise
and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from mtrl_cli.local.answers import Answer
from mtrl_cli.local.calls import SampledSequence, SampleResult
from mtrl_cli.local.engine import Completion, Sampler, SampleSpec, Shape
from mtrl_cli.local.errors import Failure, WorkError
from mtrl_cli.local.snapshots import Snapshot, Snapshots

Deliver = Callable[[object], None]  # called on the event loop with the result


def failure_of(error: BaseException) -> Failure:
    """What a client is told. An error nobody foresaw goes to the log in full."""
    if isinstance(error, WorkError):
        return error.failure
    sys.stderr.write("".join(traceback.format_exception(error)))
    return Failure(f"{type(error).__name__}: {error}"[:500], "server")


class _Hand:
    """Brings results to the event loop; after its end nothing is delivered."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def over(self, batch: list[tuple[Deliver, object]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to ask
            self._loop.call_soon_threadsafe(_deliver, batch)


def _deliver(batch: list[tuple[Deliver, object]]) -> None:
    for deliver, result in batch:
        try:
            deliver(result)
        except Exception as error:  # a promise must end, and the others of the batch too
            with contextlib.suppress(Exception):
                deliver(failure_of(error))


class TrainingThread:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._hand = _Hand(loop)
        self._jobs: queue.SimpleQueue[tuple[Callable[[], object], Deliver] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._stopping = False
        self._thread.start()

    def submit(self, job: Callable[[], object], deliver: Deliver) -> None:
        self._jobs.put((job, deliver))

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None and not self._stopping:
            job, deliver = item
            try:
                result = job()
            except Exception as error:
                result = failure_of(error)
            self._hand.over([(deliver, result)])
            del item, job, deliver, result

    def stop(self) -> None:
        self._stopping = True
        self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()


@dataclass(eq=False)
class SampleWork:
    """One asample: `specs` are its sequences, finished in any order, answered together."""

    snapshot: Snapshot
    specs: list[SampleSpec]
    deliver: Deliver
    done: dict[int, Completion] = field(default_factory=dict)
    ended: bool = False


class SamplingThread:
    def __init__(self, loop: asyncio.AbstractEventLoop, shape: Shape, max_rows: int) -> None:
        self._hand = _Hand(loop)
        self._sampler = Sampler(shape, max_rows=max_rows)
        self._max_rows = max_rows
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._asleep = False
        self._outbox: list[tuple[Deliver, object]] = []
        self._live: dict[SampleWork, int] = {}
        self._rows_of: Counter[str] = Counter()
        self._to_forget: set[str] = set()
        self.steps = 0
        self.rows = 0
        self.snapshots: Snapshots | None = None
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)

    def start(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self._thread.start()

    # --- from the event loop

    def submit(self, work: SampleWork) -> None:
        self._post(lambda: self._admit(work))

    def cancel(self, work: SampleWork) -> None:
        self._post(lambda: self._cancel(work))

    def forget(self, weights_id: str) -> None:
        self._post(lambda: self._to_forget.add(weights_id))

    def _post(self, what: Callable[[], None]) -> None:
        self._inbox.append(what)
        if self._asleep:  # set under the lock and before the inbox is looked at a last time
            with self._wake:
                self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- in the thread

    def _run(self) -> None:
        while self._wait():
            try:
                while self._inbox:
                    self._inbox.popleft()()
                self._forget_idle()
                if self._live:
                    self._step()
            except Exception as error:
                self._fail_all(failure_of(error))
            if self._outbox:
                self._hand.over(self._outbox)
                self._outbox = []

    def _wait(self) -> bool:
        """Sleep while there is nothing to do; False when it is time to end."""
        if not self._live and not self._inbox:
            with self._wake:
                self._asleep = True
                while not self._inbox and not self._stopping:
                    self._wake.wait()
                self._asleep = False
        return not self._stopping

    def _admit(self, work: SampleWork) -> None:
        assert self.snapshots is not None
        try:
            weights = self.snapshots.get(work.snapshot)
            weights_id = work.snapshot.weights_id
            self._to_forget.discard(weights_id)
            self._live[work] = len(work.specs)
            self._rows_of[weights_id] += len(work.specs)
            for index, spec in enumerate(work.specs):
                self._sampler.submit((work, index), weights_id, weights, spec)
        except Exception as error:
            self._cancel(work)
            self._outbox.append((work.deliver, failure_of(error)))

    def _cancel(self, work: SampleWork) -> None:
        work.ended = True
        if self._live.pop(work, None) is None:
            return
        for index in range(len(work.specs)):
            if index not in work.done:
                self._sampler.cancel((work, index))
                self._rows_of[work.snapshot.weights_id] -= 1

    def _step(self) -> None:
        self.rows += min(self._sampler.active, self._max_rows)
        self.steps += 1
        for key, completion in self._sampler.step():
            work, index = cast(tuple[SampleWork, int], key)
            if work.ended:
                continue
            work.done[index] = completion
            self._rows_of[work.snapshot.weights_id] -= 1
            self._live[work] -= 1
            if not self._live[work]:
                del self._live[work]
                work.ended = True
                self._outbox.append((work.deliver, self._answer(work)))

    def _answer(self, work: SampleWork) -> object:
        completions = [work.done[index] for index in range(len(work.specs))]
        if not all(math.isfinite(sum(c.logprobs)) for c in completions):
            return Failure(
                f"sampling from {work.snapshot.uri} gave a logprob that is not finite; "
                "the weights are broken",
                "server",
            )
        result = SampleResult(
            sequences=[SampledSequence(c.stop_reason, c.tokens, c.logprobs) for c in completions],
            prompt_logprobs=completions[0].prompt_logprobs,
            weights=work.snapshot.uri,
        )
        return Answer.of(result)

    def _forget_idle(self) -> None:
        """Tell the sampler to drop what it holds for weights that nothing in flight uses."""
        for weights_id in [w for w in self._to_forget if self._rows_of[w] <= 0]:
            self._to_forget.discard(weights_id)
            del self._rows_of[weights_id]
            self._sampler.forget(weights_id)

    def _fail_all(self, failure: Failure) -> None:
        """The sampler itself failed: every request in flight ends with its error."""
        for work in list(self._live):
            try:
                self._cancel(work)
            except Exception as error:
                failure_of(error)
            self._outbox.append((work.deliver, failure))
