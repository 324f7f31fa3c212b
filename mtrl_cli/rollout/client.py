"""`ClientMultiTurnRollout`: many episodes at once, orchestrated from the client's side.

Two forms of one thing. The batch form takes group admissions and returns their groups in the
same order (`run`, `run_sync`). The streaming form admits groups one by one and delivers each
once, complete or failed, in the order of completion (`admit`, `poll`, `collect`, `stop`)::

    async with ClientMultiTurnRollout(policy=…, chat=…, task=…, envs=…) as rollout:
        for admission in admissions:
            rollout.admit(admission)
        async for group in rollout.groups():
            …

All episodes run as tasks of one event loop; ``concurrency`` bounds how many are in flight, the
longest admitted first. A group whose code raises (a bug, not a failing episode) cancels its own
members, and its error is raised to whoever waits next.

`stop` is cooperative: it closes admission and waits for what was issued; with ``cancel`` it
cancels it instead. However often it is called, there is one settlement, and every caller sees
it. After it nothing is in flight, and what could not be returned is named in it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.borrow import Borrow
from mtrl_cli.rollout.episode import Parts
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.rollout.group import FailureRule, Group, play_group
from mtrl_cli.rollout.ports import Chat, EnvironmentFactory, HarnessFactory, Policy, Task
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.settle import finish, original
from mtrl_cli.rollout.slots import Slots


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a rollout ended: what was finished and not delivered, dropped, quarantined.

    What is undelivered can still be polled and collected after the stop.
    """

    undelivered: tuple[Group, ...]
    dropped: tuple[int, ...]
    left: tuple[Borrow, ...]


class RolloutStopped(RuntimeError):  # noqa: N818
    """A group was to be admitted, or was waited for, after `stop`."""


class ClientMultiTurnRollout:
    """Plays groups of multi-turn episodes under immutable policies; see the module's docstring."""

    def __init__(
        self,
        *,
        policy: Policy,
        chat: Chat,
        task: Task,
        envs: EnvironmentFactory,
        harnesses: HarnessFactory | None = None,
        resources: RolloutResources | None = None,
        concurrency: int = 256,
        failure_rule: FailureRule | None = None,
        observer: Observer = ignore,
    ) -> None:
        self.resources = resources or RolloutResources(observer=observer)
        self._parts = Parts(policy, chat, task, envs, harnesses, self.resources, observer)
        self._rule = failure_rule or FailureRule()
        self._slots = Slots(concurrency)
        self._running: dict[asyncio.Task[Group], GroupAdmission] = {}
        self._batch: set[asyncio.Task[Group]] = set()
        """Groups of `run`, which its caller awaits and gets."""
        self._finished: deque[Group] = deque()
        self._dropped: list[int] = []
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        self._settlement: asyncio.Task[Settlement] | None = None

    # --- batch ------------------------------------------------------------------------------

    async def run(self, admissions: Sequence[GroupAdmission]) -> list[Group]:
        """Play all groups; returns when every one is complete or failed.

        A failing episode ends in its group's record, not in an exception. When the caller is
        cancelled, every episode has returned what it borrowed before the cancellation goes on.

        Raises:
            RolloutStopped: `stop` was called, or cancelled the groups.
        """
        self._check_admitting("a batch")
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._play(admission)) for admission in admissions]
            for task in running:
                self._batch.add(task)
                task.add_done_callback(self._batch.discard)
        if any(task.cancelled() for task in running):
            raise RolloutStopped("a batch's groups were dropped by a stop")
        return [task.result() for task in running]

    def run_sync(self, admissions: Sequence[GroupAdmission]) -> list[Group]:
        """`run` for code without an event loop."""
        return asyncio.run(self.run(admissions))

    # --- streaming --------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Groups admitted and not finished."""
        return len(self._running)

    @property
    def stopped(self) -> bool:
        """`stop` was called: nothing more is admitted."""
        return self._settlement is not None

    def admit(self, admission: GroupAdmission) -> None:
        """Start a group; it waits for free slots by itself.

        Raises:
            RolloutStopped: `stop` was called.
        """
        self._check_admitting(f"group {admission.group}")
        task = asyncio.ensure_future(self._play(admission))
        self._running[task] = admission
        task.add_done_callback(self._group_ended)

    def poll(self) -> list[Group]:
        """The groups that have finished since the last delivery, without waiting.

        Raises the error of a group whose code raised.
        """
        self._raise_failure()
        delivered = list(self._finished)
        self._finished.clear()
        return delivered

    async def collect(self, count: int | None = None) -> list[Group]:
        """Wait for ``count`` groups (all admitted ones where None) and deliver them.

        Returns fewer when no more are in flight. Raises the error of a group whose code raised.
        When the caller is cancelled, nothing counts as delivered.
        """
        collected: list[Group] = []
        try:
            while count is None or len(collected) < count:
                group = await self._next()
                if group is None:
                    break
                collected.append(group)
        except BaseException:
            self._finished.extendleft(reversed(collected))
            self._changed.set()  # for others who wait
            raise
        return collected

    async def groups(self) -> AsyncIterator[Group]:
        """Every group as it finishes, until none is in flight."""
        while (group := await self._next()) is not None:
            yield group

    async def stop(self, *, cancel: bool = False) -> Settlement:
        """Close admission and settle what was issued; with ``cancel``, cancel it."""
        if cancel:
            for task in (*self._running, *self._batch):
                task.cancel()
        if self._settlement is None:
            self._settlement = asyncio.ensure_future(self._settle())
        return await asyncio.shield(self._settlement)

    async def __aenter__(self) -> "ClientMultiTurnRollout":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await finish(self.stop(cancel=True))

    # --- inside -----------------------------------------------------------------------------

    async def _play(self, admission: GroupAdmission) -> Group:
        return await play_group(admission, self._parts, self._slots, self._rule)

    async def _next(self) -> Group | None:
        while True:
            self._raise_failure()
            if self._finished:
                return self._finished.popleft()
            if not self._running:
                return None
            self._changed.clear()
            await self._changed.wait()

    async def _settle(self) -> Settlement:
        if issued := {*self._running, *self._batch}:
            await asyncio.wait(issued)
        left = await self.resources.settle()
        return Settlement(tuple(self._finished), tuple(sorted(self._dropped)), left)

    def _group_ended(self, task: "asyncio.Task[Group]") -> None:
        admission = self._running.pop(task)
        if task.cancelled():
            self._dropped.append(admission.group)
        elif (error := task.exception()) is not None:
            self._dropped.append(admission.group)
            self._failure = self._failure or original(error)
        else:
            self._finished.append(task.result())
        self._changed.set()

    def _check_admitting(self, what: str) -> None:
        if self.stopped:
            raise RolloutStopped(f"{what}: the rollout has been stopped")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
