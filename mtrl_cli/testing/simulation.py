"""The simulation: random schedules of the rollout core on a virtual clock, against its promises.

`simulate(seed)` plays one schedule (`schedule.draw`) in a world that misbehaves (`chaos`), with
cancellations and stops at random moments, and raises `BrokenPromise`, which names the seed and
what was broken, unless (`promises`)

- every borrow went requested → (held) → (returning) → released or quarantined, each state once;
  only what is quarantined can still be released, late; nothing leaves `released`;
- what is quarantined after the stop is what the world still counts as live;
- a thing is given back once: never during an operation on it, never used after it, and never
  forgotten, also when it comes back late;
- an external thing is in the journal before it is made, and with its id before it is used;
- a group is delivered once, or is undelivered or dropped in the settlement; its members are
  complete, or it failed with a reason; all turns are sampled from its own policy;
- a step's groups obey the lag, and every version admits what it should;
- the consumer sees the error of a group whose code raised, soon;
- every caller of `stop` sees one settlement, soon, and no task is left but those of what is
  quarantined.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.driver import StreamingDriver
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.testing.chaos import LATEST, Chaos, ChaosEnvironments, ChaosHarnesses
from mtrl_cli.testing.clock import VirtualClockLoop
from mtrl_cli.testing.promises import Books, Promises
from mtrl_cli.testing.schedule import Schedule, draw
from mtrl_cli.testing.world import NumberChat, NumberTask

_MOMENT = 1e-4
"""Virtual seconds in which everything that is ready has run."""


class BrokenPromise(AssertionError):  # noqa: N818
    """A promise of the core did not hold. The text names the seed."""


@dataclass
class Played:
    """What one schedule was like."""

    counts: Counter[str]
    """How often each thing happened."""
    events: list[tuple[float, str, str]]
    """Every change of a borrow: time, key, state."""
    reported: list[str]
    """Errors that nobody retrieved; may grow until the tasks are collected as garbage."""


def simulate(seed: int) -> Played:
    """Play the schedule of a seed.

    Raises:
        BrokenPromise: see the module's docstring.
    """
    schedule = draw(seed)
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualClockLoop)
        try:
            promises = runner.run(_play(schedule))
        except Exception as error:
            raise BrokenPromise(f"simulate({seed}): {error!r}\n{schedule}") from error
    broken = [*promises.world.violations, *loop.reported]
    if broken:
        more = f" ({len(broken) - 1} more)" if len(broken) > 1 else ""
        raise BrokenPromise(f"simulate({seed}): {broken[0]}{more}\n{schedule}")
    return Played(promises.counts, promises.books.events, loop.reported)


async def _play(schedule: Schedule) -> Promises:
    play = _Play(schedule)
    try:
        await play.play()
    finally:
        play.free()
    return play.promises


class _Play:
    """One schedule being played."""

    def __init__(self, plan: Schedule) -> None:
        self._plan = plan
        self._world = Chaos(plan.seed, plan.trouble, plan.bugs, plan.external)
        books = Books(self._world)
        self._resources = RolloutResources(books, patience=plan.patience, observer=books.observe)
        self.promises = Promises(plan, self._world, books, self._resources)
        self._rollout = ClientMultiTurnRollout(
            policy=self._world,
            chat=NumberChat(),
            task=NumberTask(),
            envs=ChaosEnvironments(self._world),
            harnesses=ChaosHarnesses(self._world) if plan.harness else None,
            resources=self._resources,
            concurrency=plan.concurrency,
            failure_rule=plan.rule,
            observer=books.observe,
        )
        self._driver = StreamingDriver(
            self._rollout,
            self._admission,
            PolicySnapshot("v0", 0),
            per_step=plan.per_step,
            lag=plan.lag,
            steps=plan.steps,
        )

    async def play(self) -> None:
        before = asyncio.all_tasks()
        consumer = asyncio.create_task(self._train() if self._plan.driver else self._consume())
        disturbing = [
            asyncio.create_task(self._disturb(seconds, what, consumer))
            for seconds, what in self._plan.disturbances
        ]
        await asyncio.wait({consumer})
        self.promises.check_consumer(consumer)
        for error in await asyncio.gather(*disturbing, return_exceptions=True):
            if error is not None and not self.promises.is_bug(error):
                raise error
        await self._stop(self._driver if self._plan.driver else self._rollout, cancel=True)
        await asyncio.sleep(_MOMENT)
        if self._rollout.in_flight:
            self._world.violate("groups are in flight after stop")
        self.promises.check_settlement()
        self.promises.check_borrows()
        self.promises.check_tasks(before)

        self.free()
        await asyncio.sleep(LATEST + self._plan.patience)
        await self._resources.close()
        await asyncio.sleep(_MOMENT)
        self.promises.check_late()
        self.promises.check_tasks(before)

    def free(self) -> None:
        self._world.free()

    # --- consumers ------------------------------------------------------------------------------

    async def _train(self) -> None:
        """A training loop over the driver."""
        plan = self._plan
        async with self._driver:
            for step in range(plan.steps + 1):
                groups = await self._patiently(self._driver.take)
                if not groups:
                    break
                self.promises.delivers_step(step, groups)
                await asyncio.sleep(plan.training)
                if plan.quiesces:
                    await self._driver.quiesce()
                    if self._rollout.in_flight:
                        self._world.violate("groups are in flight after quiesce")
                self._driver.publish(PolicySnapshot(f"v{step + 1}", step + 1))

    async def _consume(self) -> None:
        """A user of the rollout itself, in all its forms."""
        plan = self._plan
        async with self._rollout:
            for step in range(plan.steps):
                numbers = range(plan.per_step * step, plan.per_step * (step + 1))
                policy = PolicySnapshot(f"v{step}", step)
                admissions = [a for n in numbers if (a := self._admission(n, policy)) is not None]
                form = (plan.seed + step) % 4
                if form == 0:
                    self.promises.batches.update(admission.group for admission in admissions)
                    self.promises.delivers(await self._rollout.run(admissions))
                    continue
                for admission in admissions:
                    self._rollout.admit(admission)
                if form == 1:
                    self.promises.delivers(await self._patiently(lambda: self._rollout.collect(2)))
                elif form == 2:
                    await asyncio.sleep(plan.training)
                    self.promises.delivers(self._rollout.poll())
                else:
                    async for group in self._rollout.groups():
                        self.promises.delivers([group])
            self.promises.delivers(await self._patiently(self._rollout.collect))

    async def _patiently(self, wait: Callable[[], Awaitable[list[Group]]]) -> list[Group]:
        """Wait for groups; with impatience, cancel the wait and wait again."""
        while True:
            try:
                async with asyncio.timeout(self._plan.impatience):
                    return await wait()
            except TimeoutError:
                self.promises.counts["waits cancelled"] += 1

    def _admission(self, group: int, policy: PolicySnapshot) -> GroupAdmission | None:
        admission = self._plan.admission(group, policy)
        if admission is not None and not self.promises.stopped:
            self._world.admitted[group] = admission
            self.promises.versions[group] = policy.step
        return admission

    # --- disturbances ---------------------------------------------------------------------------

    async def _disturb(self, seconds: float, what: str, consumer: "asyncio.Task[None]") -> None:
        await asyncio.sleep(seconds)
        if consumer.done() or (what == "quiesce" and not self._plan.driver):
            return
        self.promises.counts[what] += 1
        match what:
            case "cancel_consumer" | "cancel_consumer_twice":
                self.promises.cancelled = True
                consumer.cancel()
                if what.endswith("twice"):
                    await asyncio.sleep(self._plan.patience / 2)
                    consumer.cancel()
            case "stop":
                await self._stop(self._rollout)
            case "stop_cancel":
                await self._stop(self._driver)
            case "stop_twice":
                first = asyncio.create_task(self._stop(self._rollout))
                await asyncio.sleep(self._plan.patience)
                await self._stop(self._rollout, cancel=True)
                await first
            case "stop_two_callers":
                await asyncio.gather(self._stop(self._driver), self._stop(self._driver))
            case "stop_waiter_cancelled":
                waiter = asyncio.create_task(self._stop(self._driver))
                await asyncio.sleep(0)
                waiter.cancel()
                await asyncio.wait({waiter})
            case "close_admission":
                self.promises.closed = True
                self._driver.close_admission()
            case "quiesce":
                await self._driver.quiesce()

    async def _stop(
        self, what: StreamingDriver | ClientMultiTurnRollout, *, cancel: bool = False
    ) -> None:
        """Stop, and check that a cancelling stop is bounded."""
        self.promises.stopped = True
        clock = asyncio.get_running_loop().time
        since = clock()
        if isinstance(what, StreamingDriver):
            cancel = True
            settlement = await what.stop()
        else:
            settlement = await what.stop(cancel=cancel)
        self.promises.settlements.append((what, settlement))
        # Operations in flight, their cancellation, the returns, what comes back late.
        bound = 3 * self._plan.patience + 1
        if cancel and (seconds := clock() - since) > bound + _MOMENT:
            self._world.violate(f"stop took {seconds:g} s, more than {bound:g} s")
