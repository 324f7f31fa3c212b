"""Borrows: everything that is held, from the intent to hold it until it is returned or named.

    requested → held → returning → released
                                 ↘ quarantined

`RolloutResources` is the register of a run's borrows. What lives outside the process (sandboxes,
server-side models, child processes) goes to the journal at every step, its intent before the
request leaves; what lives inside (environments, harnesses) is kept in memory, and only what is
left of it at the end is written.

A `Scope` owns the borrows of one trajectory, and protects what is done with them: an operation
that was handed to a thread or sent to a server goes on when its waiter is cancelled. The scope
waits for it within `patience`, then cancels it, and only then returns what the operation uses;
what not even a cancellation ends (a thread) keeps its borrow, which is quarantined, and released
late if it ever ends. Leaving a scope always returns everything, each borrow on its own: a failing
release is recorded as quarantined and never raised over the error that led there.

An operation that never waits (`settle.never_waits`) cannot be cancelled half-way. It is done in
its caller's own task, without the one that protects the others.
"""

import asyncio
import inspect
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from mtrl_cli.rollout.borrow import Borrow, Holding, Journal
from mtrl_cli.rollout.events import BorrowChanged, Observer, ignore
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.settle import finish, never_waits

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = 10.0
"""Seconds that an operation in flight may go on, and then a release, when a scope is left."""

_CANCEL_SECONDS = 1.0
"""How long a cancelled operation may take to notice."""


class RolloutResources:
    """The register of all borrows of a run."""

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        prefix: str = "",
        patience: float = PATIENCE,
        observer: Observer = ignore,
    ) -> None:
        self._journal = journal
        self._prefix = prefix
        """Of every key: what tells the borrows of one attempt of a run from another's."""
        self._patience = patience
        self._observer = observer
        self._live: dict[str, Borrow] = {}
        self._late: dict[asyncio.Task[None], float] = {}
        """Releases that did not end in time → until when they are waited for."""
        self._numbers = itertools.count(1)

    @property
    def live(self) -> tuple[Borrow, ...]:
        """What is not released: also what is quarantined."""
        return tuple(self._live.values())

    @property
    def quarantined(self) -> tuple[Borrow, ...]:
        return tuple(b for b in self._live.values() if b.state is Holding.QUARANTINED)

    def counts(self) -> Mapping[str, int]:
        """Live borrows by kind."""
        return Counter(borrow.kind for borrow in self._live.values())

    def scope(self, owner: str) -> "Scope":
        """A scope that, when it is left, returns what was borrowed in it, also under
        cancellation."""
        return Scope(self, owner)

    async def settle(self) -> tuple[Borrow, ...]:
        """Wait once more, within patience, for what comes back late; return what is quarantined.

        Once more is all: who settles again does not wait for the same things again.
        """
        if self._late:
            left = max(self._late.values()) - asyncio.get_running_loop().time()
            await asyncio.wait(self._late, timeout=max(0.0, left))
        return self.quarantined

    async def close(self) -> tuple[Borrow, ...]:
        """The end of the run: settle, record what is left of in-process borrows, return it all."""
        await self.settle()
        if self._late:
            for task in self._late:
                task.cancel()
            await asyncio.wait(self._late, timeout=_CANCEL_SECONDS)
        if self._journal is not None:
            for borrow in self.live:
                if not borrow.external:
                    self._write(borrow)
        return self.live

    # For scopes.

    def request(self, lender: "Lender[Any]", owner: str) -> Borrow:
        key = f"{self._prefix}{owner}/{lender.kind}-{next(self._numbers)}"
        borrow = Borrow(key, lender.kind, lender.external, lender.place)
        self._record(borrow)
        self._live[key] = borrow
        return borrow

    def change(self, borrow: Borrow, state: Holding, **facts: Any) -> None:
        """Move a borrow to its next state. Nothing leaves `RELEASED`."""
        if borrow.state is Holding.RELEASED:
            return
        news = state is not borrow.state
        borrow.state = state
        for name, value in facts.items():
            setattr(borrow, name, value)
        if state is Holding.RELEASED:
            self._live.pop(borrow.key, None)
        self._record(borrow, news)

    def note(self, key: str, **facts: Any) -> None:
        """Record facts of a live borrow, which does not move; the record stands when this returns.

        Raises: what the journal raises.
        """
        borrow = self._live.get(key)
        if borrow is not None:
            borrow.facts = {**borrow.facts, **facts}
            self._record(borrow, news=False)

    def release_late(self, work: Coroutine[Any, Any, None], patience: float) -> None:
        """Keep a release that did not end in time; it may still do."""
        task = asyncio.ensure_future(work)
        self._late[task] = asyncio.get_running_loop().time() + patience
        task.add_done_callback(lambda done: self._late.pop(done, None))

    @property
    def patience(self) -> float:
        return self._patience

    def _record(self, borrow: Borrow, news: bool = True) -> None:
        if borrow.external and self._journal is not None:
            try:
                self._write(borrow)
            except Exception:
                # Nothing is made or used unrecorded. But what is to be returned is returned.
                if borrow.state in (Holding.REQUESTED, Holding.HELD):
                    raise
        if news:
            self._observer(BorrowChanged(borrow.key, borrow.kind, borrow.state, borrow.id))

    def _write(self, borrow: Borrow) -> None:
        assert self._journal is not None
        facts = {
            "kind": borrow.kind,
            "place": borrow.place,
            "id": borrow.id,
            "reason": borrow.reason,
            "remedy": borrow.remedy,
        }
        known = {name: value for name, value in facts.items() if value is not None}
        self._journal.borrow(borrow.key, borrow.state.value, **known, **borrow.facts)


@dataclass(slots=True)
class _Loan(Generic[T]):
    lender: Lender[T]
    borrow: Borrow
    making: "asyncio.Future[T] | None" = None
    """None where it never waits."""
    thing: T | None = None
    """What was made, once the scope's owner has it."""
    returning: Awaitable[None] | None = None
    """Its return, once that has been asked for."""


class _Operation(NamedTuple, Generic[T]):
    on: object
    """What it works on; None where that is not known."""
    waiter: "asyncio.Future[T]"
    """Gets its outcome. Who awaits this and is cancelled leaves the operation alone."""


@dataclass(slots=True)
class Scope:
    """The borrows of one owner, and the operations in flight on them."""

    resources: RolloutResources
    owner: str
    _loans: "list[_Loan[Any]]" = field(default_factory=list)
    _operations: "dict[asyncio.Future[Any], _Operation[Any]]" = field(default_factory=dict)
    """Those in flight."""
    _settled: bool = False

    async def __aenter__(self) -> "Scope":
        return self

    async def __aexit__(self, *error: object) -> None:
        if not self._operations:
            await self._return_at_once()
        if self._loans or self._operations:
            await finish(self.settle())

    async def borrow(self, lender: Lender[T]) -> T:
        """Borrow one thing until the scope is left.

        Raises whatever ``lender.make`` raises; then nothing is held. Raises RuntimeError when the
        scope was left meanwhile; then what was made is returned.
        """
        self._check_open(f"borrow {lender.kind}")
        borrow = self.resources.request(lender, self.owner)
        loan = _Loan(lender, borrow)
        self._loans.append(loan)
        try:
            work = lender.make(borrow.key)
            if never_waits(work):
                thing = await work
            else:
                loan.making = self._operation(work, borrow)
                # A cancelled waiter leaves the making alone: what it makes must be known.
                thing = await self._operations[loan.making].waiter
        except BaseException as error:
            if loan.making is not None and isinstance(error, asyncio.CancelledError):
                lender.unwanted(borrow.key)
            elif not self._settled:
                self._loans.remove(loan)
                self._not_made(loan, error)
            raise
        self._check_open(f"use {lender.kind}")
        loan.thing = thing
        self.resources.change(
            borrow, Holding.HELD, id=lender.identify(thing), facts=lender.facts(thing)
        )
        return thing

    async def protect(self, operation: Awaitable[T], on: object = None) -> T:
        """Await an operation; it goes on if the waiter is cancelled.

        ``on`` is the borrowed thing that it works on; without it, it may work on all of them.
        """
        if self._settled and inspect.iscoroutine(operation):
            operation.close()  # refused below: it will not be awaited
        self._check_open("use what was returned")
        if never_waits(operation):
            return await operation
        outcome: T = await self._operations[self._operation(operation, on)].waiter
        return outcome

    async def settle(self) -> None:
        """Return everything; see the module's docstring. Idempotent."""
        self._settled = True
        interruptible = {id(loan.thing) for loan in self._loans if loan.lender.interruptible}
        for task, operation in self._operations.items():
            if id(operation.on) in interruptible:
                task.cancel()
        await self._await_operations()
        loans, self._loans = self._loans, []
        if len(loans) == 1:
            await self._return(loans[0])
        elif loans:
            await asyncio.gather(*(self._return(loan) for loan in reversed(loans)))

    async def _return_at_once(self) -> None:
        """Return what can be returned without waiting; nothing is in flight."""
        self._settled = True
        for loan in self._loans[::-1]:
            if loan.thing is not None and never_waits(back := self._ask_back(loan, loan.thing)):
                self._loans.remove(loan)
                await self._returned(loan, back)

    async def _await_operations(self) -> None:
        if self._operations:
            await asyncio.wait(self._operations, timeout=self.resources.patience)
        if self._operations:
            for task in self._operations:
                task.cancel()
            await asyncio.wait(self._operations, timeout=_CANCEL_SECONDS)

    async def _return(self, loan: "_Loan[Any]") -> None:
        busy = {
            task
            for task, (on, _) in self._operations.items()
            if not task.done() and (on is None or on is loan.thing or on is loan.borrow)
        }
        patience = loan.lender.patience or self.resources.patience
        work = asyncio.ensure_future(self._give_back(loan, busy))
        await asyncio.sleep(0)  # most returns end at once, and need no timer
        if not work.done():
            await asyncio.wait({work}, timeout=0 if busy else patience)
        if work.done():
            return
        reason = "an operation on it has not ended" if busy else "its return has not ended"
        self._quarantine(loan, f"{reason} within {patience:g} s")
        self.resources.release_late(_outcome(work), patience)

    async def _give_back(self, loan: "_Loan[Any]", busy: "set[asyncio.Future[Any]]") -> None:
        """Release one loan, after what still uses it; its failure ends in quarantine."""
        if busy:
            await asyncio.wait(busy)
        try:
            thing = loan.thing if loan.making is None else await loan.making
        except BaseException as error:
            self._not_made(loan, error)
            return
        await self._returned(loan, self._ask_back(loan, thing))

    def _ask_back(self, loan: "_Loan[Any]", thing: Any) -> Awaitable[None]:
        """Its return, begun or to be awaited; asked for once."""
        if loan.returning is None:
            if loan.borrow.state is not Holding.QUARANTINED:
                # Perhaps its owner never saw it: then nothing of this is recorded yet.
                name = _described(loan.lender.identify, thing, otherwise=loan.borrow.id)
                facts = _described(loan.lender.facts, thing, otherwise=loan.borrow.facts)
                self.resources.change(loan.borrow, Holding.RETURNING, id=name, facts=facts)
            loan.returning = _given_back(loan.lender, thing)
        return loan.returning

    async def _returned(self, loan: "_Loan[Any]", returning: Awaitable[None]) -> None:
        """Await a return; its failure ends in quarantine."""
        try:
            await returning
        except asyncio.CancelledError:
            # By its own code, or at the end of the run, which knows a better reason already.
            if loan.borrow.state is not Holding.QUARANTINED:
                self._quarantine(loan, "its return was cancelled")
        except Exception as error:
            self._quarantine(loan, str(error) or type(error).__name__)
        else:
            self.resources.change(loan.borrow, Holding.RELEASED)

    def _not_made(self, loan: "_Loan[Any]", error: BaseException) -> None:
        """Its making ended in ``error``: nothing is held, or nobody knows."""
        if loan.lender.perhaps_made(error):
            why = str(error) or "its making was given up"
            self._quarantine(loan, f"it may have been made ({why})")
        else:
            self.resources.change(loan.borrow, Holding.RELEASED)

    def _quarantine(self, loan: "_Loan[Any]", reason: str) -> None:
        remedy = _described(loan.lender.remedy, loan.borrow.id, otherwise="remove it by hand")
        self.resources.change(loan.borrow, Holding.QUARANTINED, reason=reason, remedy=remedy)

    def _operation(self, work: Awaitable[T], on: object) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        task = loop.create_task(work) if inspect.iscoroutine(work) else asyncio.ensure_future(work)
        self._operations[task] = _Operation(on, loop.create_future())
        task.add_done_callback(self._operation_ended)
        return task

    def _operation_ended(self, task: "asyncio.Future[Any]") -> None:
        # As `asyncio.shield` would, in one callback: this is the core's most frequent work.
        waiter = self._operations.pop(task).waiter
        error = None if task.cancelled() else task.exception()  # retrieved: nobody may wait
        if waiter.done():
            return
        if task.cancelled():
            waiter.cancel()
        elif error is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(task.result())

    def _check_open(self, what: str) -> None:
        if self._settled:
            raise RuntimeError(f"{self.owner}: cannot {what}: the scope has been left")


def _given_back(lender: Lender[T], thing: T) -> Awaitable[None]:
    try:
        return lender.give_back(thing)
    except Exception as error:
        return _raising(error)


async def _raising(error: Exception) -> None:
    raise error


def _described(describe: Callable[[Any], R], thing: Any, *, otherwise: R) -> R:
    """A lender's description; a failing one must not keep the thing from being returned."""
    try:
        return describe(thing)
    except Exception:
        return otherwise


async def _outcome(work: "asyncio.Future[None]") -> None:
    await work
