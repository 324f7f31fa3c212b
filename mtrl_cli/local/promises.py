"""Promises: an id now, the answer later, and the same answer every time it is asked for.

An id is `<server>-<number>`; the server part is random per process. So three kinds of unknown id
can be told apart without remembering anything: of another process (404), never given (404), and
given but dropped (410). Finished answers are kept, encoded, until they are too old or all
together too large; the oldest go first. Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from mtrl_cli.local.answers import Answer
from mtrl_cli.local.errors import Failure, RefusedError


@dataclass(eq=False, slots=True)
class Promise:
    request_id: str
    owner: str  # the session that ends with it, or ""
    answer: Answer | None = None
    failed: bool = False
    size: int = 0  # as counted when it was finished
    finished_at: float = 0.0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class Promises:
    def __init__(
        self,
        max_age: float = 3600.0,
        max_bytes: int = 256 * 2**20,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._now = now
        self._server = secrets.token_hex(4)
        self._given = 0
        self._pending: dict[str, Promise] = {}
        self._finished: OrderedDict[str, Promise] = OrderedDict()
        self._bytes = 0
        self._closed = False

    def new(self, owner: str = "") -> Promise:
        self._given += 1
        promise = Promise(f"{self._server}-{self._given}", owner)
        self._pending[promise.request_id] = promise
        return promise

    def resolve(self, promise: Promise, result: object) -> None:
        """Keep the answer and wake who waits for it. The first answer stands.

        `result` is a domain value, or the `Answer` that a worker thread has encoded already.
        """
        if self._pending.pop(promise.request_id, None) is None:
            return
        promise.answer = result if isinstance(result, Answer) else Answer.of(result)
        promise.failed = isinstance(promise.answer.result, Failure)
        promise.finished_at = self._now()
        self._finished[promise.request_id] = promise
        promise.size = promise.answer.size
        self._bytes += promise.size
        for waiter in promise.waiters:
            if not waiter.done():
                waiter.set_result(None)
        promise.waiters.clear()
        if self._bytes > self._max_bytes:
            self._drop_old()

    def peek(self, request_id: str) -> Answer | None:
        """The answer if it is there; an unknown id is refused."""
        return self._find(request_id).answer

    async def retrieve(self, request_id: str, patience: float) -> Answer | None:
        """The answer, waiting at most `patience` seconds for it; None means not yet."""
        promise = self._find(request_id)
        if promise.answer is None and not self._closed:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            promise.waiters.append(waiter)
            timer = loop.call_later(patience, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                if waiter in promise.waiters:
                    promise.waiters.remove(waiter)
        return promise.answer

    def _find(self, request_id: str) -> Promise:
        found = self._finished.get(request_id) or self._pending.get(request_id)
        if found is not None:
            return found
        server, _, number = request_id.rpartition("-")
        if server == self._server and number.isdecimal() and 0 < int(number) <= self._given:
            raise RefusedError(410, f"request_id: the answer of {request_id} is no longer kept")
        raise RefusedError(404, "request_id: not given by this server process")

    def sweep(self) -> None:
        self._drop_old()

    def _drop_old(self) -> None:
        horizon = self._now() - self._max_age
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if oldest.finished_at >= horizon and self._bytes <= self._max_bytes:
                return
            if len(self._finished) == 1 and oldest.finished_at >= horizon:
                return  # a single large answer must be readable at least
            del self._finished[oldest.request_id]
            self._bytes -= oldest.size

    def close(self) -> None:
        """Answer every long poll with 'not yet', so that connections can end."""
        self._closed = True
        for promise in self._pending.values():
            for waiter in promise.waiters:
                _wake(waiter)

    def counters(self) -> dict[str, int]:
        return {
            "pending": len(self._pending),
            "finished": len(self._finished),
            "finished_bytes": self._bytes,
            "given": self._given,
        }


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
