"""The streaming driver: versions, order, lag, stragglers, the end of the data."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout, RolloutStopped
from mtrl_cli.rollout.driver import StreamingDriver
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import Sample, SampleRequest
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.testing.clock import run_virtual
from mtrl_cli.testing.world import END, NumberChat, World
from tests.rollout.helpers import GroupTask, admission, said, virtual


@dataclass
class Gate:
    """A policy that answers a group's request when the test says so."""

    free: set[int] = field(default_factory=set)
    everything: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    policies: dict[int, str] = field(default_factory=dict)

    async def sample(self, request: SampleRequest) -> Sample:
        group = request.tokens[1] - 10
        self.policies[group] = request.policy
        while not self.everything and group not in self.free:
            self.changed.clear()
            await self.changed.wait()
        return said(101, END)

    def release(self, *groups: int) -> None:
        self.free.update(groups)
        self.changed.set()

    def release_all(self) -> None:
        self.everything = True
        self.changed.set()


def admissions(groups: int | None) -> Callable[[int, PolicySnapshot], GroupAdmission | None]:
    def admit(group: int, policy: PolicySnapshot) -> GroupAdmission | None:
        if groups is not None and group >= groups:
            return None
        made = admission(size=1, group=group)
        return replace(made, policy=policy.uri, policy_step=policy.step)

    return admit


@asynccontextmanager
async def driven(gate: Gate, *, groups: int | None = None, **options: int) -> Iterator[object]:  # type: ignore[misc]
    rollout = ClientMultiTurnRollout(
        policy=gate,
        chat=NumberChat(),
        task=GroupTask(),
        envs=World(),
        resources=RolloutResources(patience=0.1),
    )
    driver = StreamingDriver(
        rollout,
        admissions(groups),
        PolicySnapshot("v0", 0),
        **options,  # type: ignore[arg-type]
    )
    async with driver:
        yield driver
    assert rollout.resources.live == ()


def ids(groups: list[Group]) -> list[int]:
    return [group.admission.group for group in groups]


def version(number: int) -> PolicySnapshot:
    return PolicySnapshot(f"v{number}", number)


async def blocked(waiting: Awaitable[object]) -> bool:
    """Whether ``waiting`` does not end by itself once everything that can run has run."""
    task = asyncio.ensure_future(waiting)
    for _ in range(50):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.wait({task})
    return not ended


@virtual
async def test_synchronous_when_the_lag_is_zero() -> None:
    gate = Gate()
    async with driven(gate, per_step=2, lag=0, steps=3) as driver:
        gate.release_all()
        for step in range(3):
            groups = await driver.take()
            assert sorted(ids(groups)) == [2 * step, 2 * step + 1]
            assert {group.admission.policy for group in groups} == {f"v{step}"}
            driver.publish(version(step + 1))
        assert await driver.take() == []
        assert driver.exhausted


@virtual
async def test_with_lag_one_the_next_batch_is_in_flight_while_a_step_trains() -> None:
    gate = Gate()
    async with driven(gate, per_step=2, lag=1, steps=4) as driver:
        gate.release(0, 1)
        assert sorted(ids(await driver.take())) == [0, 1]
        assert set(gate.policies) == {0, 1, 2, 3}  # sampled while "training"
        driver.publish(version(1))
        gate.release_all()
        taken = [await driver.take()]
        driver.publish(version(2))
        taken.append(await driver.take())
        driver.publish(version(3))
        taken.append(await driver.take())
    assert [sorted(ids(groups)) for groups in taken] == [[2, 3], [4, 5], [6, 7]]
    assert [gate.policies[group] for group in range(8)] == ["v0"] * 4 + ["v1"] * 2 + ["v2"] * 2


@virtual
async def test_completion_order_within_a_version_and_oldest_version_first() -> None:
    gate = Gate()
    async with driven(gate, per_step=2, lag=2) as driver:
        for group in (5, 3):  # all six are on version 0
            gate.release(group)
            await asyncio.sleep(0.01)
        assert ids(await driver.take()) == [5, 3]
        driver.publish(version(1))  # groups 6 and 7 on version 1
        for group in (7, 6, 4, 2):
            gate.release(group)
            await asyncio.sleep(0.01)
        assert ids(await driver.take()) == [4, 2]


@virtual
async def test_a_straggler_is_overtaken_only_as_far_as_the_lag_allows() -> None:
    gate = Gate()
    async with driven(gate, per_step=2, lag=1) as driver:
        gate.release(1, 2, 3)  # 0 … 3 are on version 0; 0 is the straggler
        assert ids(await driver.take()) == [1, 2]
        driver.publish(version(1))
        gate.release(4, 5)
        assert await blocked(driver.take())  # version 2 must not be made before group 0 is in
        gate.release(0)
        assert sorted(ids(await driver.take())) == [0, 3]


@virtual
async def test_the_last_batch_may_be_short_and_nothing_hangs_at_the_end_of_the_data() -> None:
    gate = Gate()
    gate.release_all()
    async with driven(gate, per_step=4, lag=1, groups=6) as driver:
        sizes = []
        while groups := await driver.take():
            sizes.append(len(groups))
            driver.publish(version(len(sizes)))
        assert sizes == [4, 2]
        assert driver.exhausted


@virtual
async def test_a_drain_takes_what_was_issued_and_no_more() -> None:
    gate = Gate()
    async with driven(gate, per_step=2, lag=1) as driver:
        gate.release_all()
        await driver.take()
        driver.close_admission()
        driver.publish(version(1))
        assert ids(await driver.take()) == [2, 3]
        assert await driver.take() == []


@virtual
async def test_quiesce_leaves_nothing_in_flight_and_loses_nothing() -> None:
    gate = Gate()
    async with driven(gate, per_step=2, lag=1, steps=2) as driver:
        gate.release(0, 1)
        assert sorted(ids(await driver.take())) == [0, 1]
        assert await blocked(driver.quiesce())
        gate.release(2, 3)
        await driver.quiesce()
        assert driver._rollout.in_flight == 0
        driver.publish(version(1))
        assert sorted(ids(await driver.take())) == [2, 3]


@virtual
async def test_an_error_in_a_worker_reaches_the_consumer_at_once() -> None:
    class Broken:
        async def sample(self, request: SampleRequest) -> Sample:
            raise ZeroDivisionError("a bug in the policy client")

    async with asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError, match="a bug"):
            async with driven(Broken(), per_step=2, lag=1) as driver:  # type: ignore[arg-type]
                await driver.take()


@virtual
async def test_whoever_waits_for_a_step_when_the_rollout_stops_is_told() -> None:
    async with driven(Gate(), per_step=2) as driver:
        taking = asyncio.ensure_future(driver.take())
        await asyncio.sleep(0.01)
        settlement = await driver.stop()
        assert settlement.dropped == (0, 1)
        with pytest.raises(RolloutStopped):
            await taking


@settings(max_examples=60, deadline=None)
@given(
    per_step=st.integers(1, 3),
    lag=st.integers(0, 3),
    steps=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_every_group_is_taken_once_under_its_own_policy_and_never_too_old(
    per_step: int, lag: int, steps: int, seed: int
) -> None:
    order = random.Random(seed)

    async def run() -> None:
        gate = Gate()
        async with driven(gate, per_step=per_step, lag=lag, steps=steps) as driver:
            taken: list[int] = []
            for step in range(steps):
                take = asyncio.ensure_future(driver.take())
                while not take.done():
                    await asyncio.sleep(0)
                    waiting = [g for g in gate.policies if g not in gate.free]
                    if waiting:
                        gate.release(order.choice(waiting))
                groups = take.result()
                assert len(groups) == per_step
                for group in groups:
                    made = group.admission.policy_step
                    assert 0 <= step - made <= lag
                    assert gate.policies[group.admission.group] == f"v{made}"
                taken += ids(groups)
                driver.publish(version(step + 1))
            assert sorted(taken) == list(range(per_step * steps))
            admitted = [gate.policies[group] for group in range(per_step * steps)]
            for number in range(1, steps):
                expected = per_step if number + lag < steps else 0
                assert admitted.count(f"v{number}") == expected

    run_virtual(run())
