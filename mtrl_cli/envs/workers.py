"""Worker threads for synchronous environments: affinity, deadlines, and what to do when stuck.

Every owner (an environment instance) is bound to one thread; its operations run there, in
order, one at a time. An operation's deadline counts from its start, so waiting behind a slow
neighbour is not held against it. A thread cannot be stopped: one that exceeds a deadline is
abandoned with the operation it hangs in, a fresh thread takes over the other owners that were
bound to it, and what belongs to the stuck owner (its close) runs on the old thread when that
comes back. With ``exclusive`` the owners must never change threads, and share its fate instead.

Handing over costs one queue put and, for all results that are ready together, one wake-up of
the event loop; deadlines are watched by one timer, which runs only while work is pending.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from mtrl_cli.rollout.task_fault import may_be_the_users


class StuckError(Exception):
    """The operation did not end by its deadline, or its thread is stuck in another one."""


class WorkRaised(Exception):  # noqa: N818
    """The work raised ``error``, which travels wrapped: a bare StopIteration cannot leave a future,
    a CancelledError would pass for our own, and a SystemExit would end the event loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@dataclass(eq=False, slots=True)
class _Operation:
    work: Callable[[], Any]
    timeout: float
    owner: "Owner"
    future: "asyncio.Future[Any]"
    essential: bool
    """Runs even when nobody waits for it any more."""
    started: float | None = None
    outcome: Any = None
    error: BaseException | None = None


@dataclass(eq=False)
class _Worker:
    """One thread. ``replacement`` is set when it is abandoned."""

    queue: "SimpleQueue[_Operation | None]" = field(default_factory=SimpleQueue)
    current: _Operation | None = None
    owners: "set[Owner]" = field(default_factory=set)
    replacement: "_Worker | None" = None
    thread: Thread | None = None


class Owner:
    """Whoever is bound to a thread; made by `Workers.bind`."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker


class Workers:
    """A small pool of threads that many owners share. Used from one event loop.

    With 0 threads the work runs on the event loop: cheapest, and without a deadline, for
    environments that never wait.
    """

    def __init__(self, threads: int, name: str, *, exclusive: bool = False) -> None:
        self._name = name
        self._exclusive = exclusive
        self._workers: list[_Worker] = []
        self._threads = min(threads, 1) if exclusive else threads
        self._abandoned: list[_Worker] = []
        self._done: deque[_Operation] = deque()
        self._waking = False
        self._pending = 0
        self._watch_every = 1.0
        self._watch: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def stuck(self) -> list[str]:
        """What the abandoned threads hang in."""
        return [
            worker.thread.name
            for worker in self._abandoned
            if worker.thread is not None and worker.thread.is_alive()
        ]

    def bind(self) -> Owner:
        """A new owner on the thread with the fewest."""
        if self._threads == 0:
            return Owner(_Worker())
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if len(self._workers) < self._threads:
            self._workers.append(self._start())
        worker = min(self._workers, key=lambda worker: len(worker.owners))
        owner = Owner(worker)
        worker.owners.add(owner)
        return owner

    def release(self, owner: Owner) -> None:
        owner._worker.owners.discard(owner)

    async def run(
        self, owner: Owner, work: Callable[[], Any], timeout: float, *, essential: bool = False
    ) -> Any:
        """Run ``work`` on the owner's thread. A cancelled waiter does not stop it.

        Raises:
            StuckError: the deadline passed; ``work`` may still be running.
            WorkRaised
        """
        if self._threads == 0:
            try:
                return work()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and may_be_the_users():
                    raise
                raise WorkRaised(error) from error
        loop = self._loop
        assert loop is not None
        operation = _Operation(work, timeout, owner, loop.create_future(), essential)
        worker = owner._worker
        if worker.replacement is not None and not essential:
            raise StuckError
        self._pending += 1
        worker.queue.put(operation)
        self._watch_for(timeout)
        if worker.replacement is not None:  # nobody watches an abandoned thread
            try:
                async with asyncio.timeout(timeout):
                    return await operation.future
            except TimeoutError as error:
                raise StuckError from error
        return await operation.future

    async def close(self, timeout: float) -> None:
        """End the threads; abandoned ones end when they come back."""
        for worker in (*self._workers, *self._abandoned):
            worker.queue.put(None)
        await asyncio.to_thread(_join, list(self._workers), time.monotonic() + timeout)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # --- on the threads -----------------------------------------------------------------------

    def _start(self) -> _Worker:
        worker = _Worker()
        worker.thread = Thread(
            target=self._work, args=(worker,), name=f"env-{self._name}", daemon=True
        )
        worker.thread.start()
        return worker

    def _work(self, worker: _Worker) -> None:
        while (operation := worker.queue.get()) is not None:
            if operation.essential or not operation.future.done():
                operation.started = time.monotonic()
                worker.current = operation
                try:
                    operation.outcome = operation.work()
                except BaseException as error:
                    operation.error = error
                worker.current = None
            self._done.append(operation)
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)  # type: ignore[union-attr]
                except RuntimeError:
                    return  # the event loop is closed: nobody waits any more
            if worker.replacement is not None and operation.essential and not self._exclusive:
                return  # it came back, and its only remaining owner is closed
            del operation  # or it would keep an environment alive until the next one

    # --- on the event loop ----------------------------------------------------------------------

    def _deliver(self) -> None:
        self._waking = False  # before draining: whoever appends from now on wakes again
        while self._done:
            operation = self._done.popleft()
            self._pending -= 1
            if operation.future.done():
                continue
            if operation.error is None:
                operation.future.set_result(operation.outcome)
            else:
                operation.future.set_exception(WorkRaised(operation.error))

    def _watch_for(self, timeout: float) -> None:
        """Look at the threads often enough for this timeout, while anything is pending."""
        every = max(timeout / 10, 0.01)
        if every < self._watch_every:
            self._watch_every = every
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
        if self._watch is None and self._loop is not None:
            self._watch = self._loop.call_later(self._watch_every, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            operation = worker.current
            if (
                operation is not None
                and operation.started is not None
                and now - operation.started > operation.timeout
            ):
                self._abandon(worker, operation)
        self._watch = None
        if self._pending and self._loop is not None:
            self._watch = self._loop.call_later(self._watch_every, self._check_deadlines)

    def _abandon(self, worker: _Worker, stuck: _Operation) -> None:
        fresh = self._start()
        worker.replacement = fresh
        self._workers[self._workers.index(worker)] = fresh
        self._abandoned = [w for w in self._abandoned if w.thread and w.thread.is_alive()]
        self._abandoned.append(worker)
        _fail(stuck)
        if not self._exclusive:
            for owner in [owner for owner in worker.owners if owner is not stuck.owner]:
                owner._worker = fresh
                worker.owners.discard(owner)
                fresh.owners.add(owner)
        for waiting in _drain(worker.queue):
            if waiting.owner._worker is fresh:
                fresh.queue.put(waiting)
            else:
                _fail(waiting)
                worker.queue.put(waiting)  # an essential one runs, the others are skipped


def _join(workers: list[_Worker], deadline: float) -> None:
    for worker in workers:
        if worker.thread is not None:
            worker.thread.join(max(0.0, deadline - time.monotonic()))


def _fail(operation: _Operation) -> None:
    if not operation.future.done():
        operation.future.set_exception(StuckError())


def _drain(queue: "SimpleQueue[_Operation | None]") -> list[_Operation]:
    drained: list[_Operation] = []
    while True:
        try:
            operation = queue.get_nowait()
        except Empty:
            return drained
        if operation is not None:
            drained.append(operation)
