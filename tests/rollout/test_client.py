"""`ClientMultiTurnRollout` as its users know it: admit, poll, collect, groups, stop."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout, RolloutStopped
from mtrl_cli.rollout.driver import StreamingDriver
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import (
    Sample,
    SampleRequest,
)
from mtrl_cli.testing.world import END, World
from tests.rollout.helpers import Delays, admission, admit, rollout_of, said, virtual


def ids(groups: Sequence[Group]) -> list[int]:
    return [group.admission.group for group in groups]


class TestDelivery:
    @virtual
    async def test_poll_delivers_what_has_finished_and_never_waits(self) -> None:
        async with rollout_of() as rollout:
            admit(rollout, 3, 1, 2)
            assert (rollout.poll(), rollout.in_flight) == ([], 3)
            await asyncio.sleep(2.5)
            assert ids(rollout.poll()) == [1, 2]
            assert (rollout.poll(), rollout.in_flight) == ([], 1)

    @virtual
    async def test_collect_waits_for_as_many_as_asked_in_order_of_completion(self) -> None:
        async with rollout_of() as rollout:
            admit(rollout, 5, 1, 4, 2)
            assert ids(await rollout.collect(2)) == [1, 2]
            assert asyncio.get_running_loop().time() == 2
            assert ids(await rollout.collect(5)) == [4, 5]  # no more are in flight
            assert await rollout.collect() == []

    @virtual
    async def test_groups_streams_also_what_is_admitted_meanwhile(self) -> None:
        seen = []
        async with rollout_of() as rollout:
            admit(rollout, 1, 2)
            async for group in rollout.groups():
                seen.append(group.admission.group)
                if seen == [1]:
                    admit(rollout, 4)
        assert seen == [1, 2, 4]

    @virtual
    async def test_a_cancelled_collect_loses_nothing(self) -> None:
        async with rollout_of() as rollout:
            admit(rollout, 1, 2, 3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(rollout.collect(3), 2.5)
            assert ids(await rollout.collect()) == [1, 2, 3]

    @virtual
    async def test_what_a_cancelled_collect_had_is_there_for_others_who_wait(self) -> None:
        async with rollout_of() as rollout:
            admit(rollout, 1, 3)
            greedy = asyncio.create_task(rollout.collect(2))
            await asyncio.sleep(1.5)
            other = asyncio.create_task(rollout.collect(1))
            await asyncio.sleep(0.5)
            greedy.cancel()
            assert ids(await other) == [1]

    @virtual
    async def test_two_consumers_never_see_the_same_group(self) -> None:
        async with rollout_of() as rollout:
            admit(rollout, 1, 2, 3, 4)
            one, two = await asyncio.gather(rollout.collect(), rollout.collect())
            assert sorted([*ids(one), *ids(two)]) == [1, 2, 3, 4]

    @virtual
    async def test_a_bug_reaches_whoever_waits_and_keeps_what_was_collected(self) -> None:
        bug = ZeroDivisionError("a bug")
        async with rollout_of(Delays({2: bug})) as rollout:
            admit(rollout, 1, 2, 30)
            with pytest.raises(ZeroDivisionError) as raised:
                await rollout.collect()
            assert raised.value is bug
            assert asyncio.get_running_loop().time() == 2
            with pytest.raises(ZeroDivisionError):
                rollout.poll()
            settlement = await rollout.stop(cancel=True)
        assert (ids(settlement.undelivered), settlement.dropped) == ([1], (2, 30))

    @virtual
    async def test_an_episode_that_cancels_itself_is_an_error_not_a_silent_drop(self) -> None:
        bug = asyncio.CancelledError("from inside")
        async with rollout_of(Delays({1: bug})) as rollout:
            admit(rollout, 1, 30)
            with pytest.raises(RuntimeError, match=r"train/g1/m0/r0: .* cancelled itself"):
                await rollout.collect()

    @virtual
    async def test_concurrency_bounds_the_episodes_and_the_longest_admitted_go_first(self) -> None:
        world = World()
        async with rollout_of(concurrency=2, envs=world) as rollout:
            for group in (3, 5, 1):
                rollout.admit(admission(group=group))
            await asyncio.sleep(1)
            assert (rollout.in_flight, world.live) == (3, 2)
            assert ids(await rollout.collect(1)) == [3]  # the one of a second has not begun
            assert ids(await rollout.collect()) == [1, 5]


class TestStop:
    @virtual
    async def test_stop_admits_nothing_and_waits_for_what_was_issued(self) -> None:
        rollout = rollout_of()
        admit(rollout, 1, 2)
        stopping = asyncio.create_task(rollout.stop())
        await asyncio.sleep(0)
        with pytest.raises(RolloutStopped, match="group 7: the rollout has been stopped"):
            admit(rollout, 7)
        with pytest.raises(RolloutStopped):
            await rollout.run([admission(group=8)])
        settlement = await stopping
        assert (ids(settlement.undelivered), settlement.dropped, settlement.left) == (
            [1, 2],
            (),
            (),
        )
        assert ids(rollout.poll()) == [1, 2]  # a drain's consumer still gets them

    @virtual
    async def test_a_second_stop_may_cancel_and_both_callers_see_one_settlement(self) -> None:
        rollout = rollout_of()
        admit(rollout, 1, 2, 50)
        first = asyncio.create_task(rollout.stop())
        await asyncio.sleep(1.5)
        second = await rollout.stop(cancel=True)
        assert await first is second
        assert await rollout.stop() is second
        assert (ids(second.undelivered), second.dropped) == ([1], (2, 50))
        assert asyncio.get_running_loop().time() == 1.5

    @virtual
    async def test_a_cancelled_caller_of_stop_does_not_end_it(self) -> None:
        rollout = rollout_of()
        admit(rollout, 1)
        waiter = asyncio.create_task(rollout.stop())
        await asyncio.sleep(0.5)
        waiter.cancel()
        settlement = await rollout.stop()
        assert ids(settlement.undelivered) == [1]

    @virtual
    async def test_stop_settles_a_batch_too(self) -> None:
        rollout = rollout_of()
        batch = asyncio.create_task(rollout.run([admission(group=1), admission(group=50)]))
        await asyncio.sleep(2)
        await rollout.stop(cancel=True)
        assert asyncio.get_running_loop().time() == 2
        assert rollout.resources.live == ()
        with pytest.raises(RolloutStopped, match="dropped by a stop"):
            await batch

    @virtual
    async def test_a_stop_before_anything_began(self) -> None:
        rollout = rollout_of()
        admit(rollout, 1)
        settlement = await rollout.stop(cancel=True)
        assert (settlement.dropped, rollout.resources.live) == ((1,), ())

    @virtual
    async def test_leaving_the_context_twice_cancelled_leaves_nothing_in_flight(self) -> None:
        world = World()
        rollout = rollout_of(Unhurried(), envs=world)

        async def user() -> None:
            async with rollout:
                admit(rollout, 50)
                await rollout.collect()

        task = asyncio.create_task(user())
        for _ in range(3):
            await asyncio.sleep(0.2)
            task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert (rollout.in_flight, world.live) == (0, 0)


class Unhurried:
    """A policy that takes half a second to notice a cancellation."""

    async def sample(self, request: SampleRequest) -> Sample:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.shield(asyncio.sleep(0.5))
        raise AssertionError


class TestDriver:
    """What the simulation found in the driver; the rest is in test_driver."""

    def driver(self, rollout: ClientMultiTurnRollout, **options: Any) -> StreamingDriver:
        return StreamingDriver(rollout, self.admission, PolicySnapshot("v0", 0), **options)

    @staticmethod
    def admission(group: int, policy: PolicySnapshot) -> GroupAdmission:
        return replace(admission(group=group), policy=policy.uri, policy_step=policy.step)

    @virtual
    async def test_with_lag_two_a_fast_new_group_does_not_make_an_old_one_too_old(self) -> None:
        """Groups 0, 1, 2 are on version 0. Step 1 must take one of them, although group 3, on
        version 1, is there first: steps 1 and 2 are the last that may train 1 and 2."""
        seconds = {0: 0, 1: 5, 2: 6, 3: 0, 4: 0, 5: 0}

        class Timed:
            async def sample(self, request: SampleRequest) -> Sample:
                await asyncio.sleep(seconds.get(request.tokens[1] - 10, 0))
                return said(101, END)

        async with self.driver(rollout_of(Timed()), per_step=1, lag=2, steps=5) as driver:
            for step in range(5):
                [group] = await driver.take()
                assert group.admission.group == step
                assert step - group.admission.policy_step <= 2
                driver.publish(PolicySnapshot(f"v{step + 1}", step + 1))

    @virtual
    async def test_the_settlement_names_what_a_cancelled_take_had_waited_for(self) -> None:
        async with self.driver(rollout_of(), per_step=3, steps=1) as driver:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(driver.take(), 1.5)
            first, second = await asyncio.gather(driver.stop(), driver.stop())
        assert first is second
        assert (sorted(ids(first.undelivered)), first.dropped) == ([0, 1], (2,))

    @virtual
    async def test_a_quiesce_meanwhile_does_not_look_like_a_stop(self) -> None:
        async with self.driver(rollout_of(), per_step=3, steps=1) as driver:
            taking = asyncio.create_task(driver.take())
            await asyncio.sleep(0)
            await driver.quiesce()
            assert sorted(ids(await taking)) == [0, 1, 2]

    @virtual
    async def test_a_step_is_published_also_when_its_rollout_was_stopped_meanwhile(self) -> None:
        rollout = rollout_of()
        async with self.driver(rollout, per_step=1, lag=1) as driver:
            assert ids(await driver.take()) == [0]
            await rollout.stop()
            driver.publish(PolicySnapshot("v1", 1))
            assert ids(await driver.take()) == [1]  # it was issued before the stop
            driver.publish(PolicySnapshot("v2", 2))
            assert await driver.take() == []

    @virtual
    async def test_an_admission_that_fails_at_the_start_leaves_nothing_in_flight(self) -> None:
        def admit_first(group: int, policy: PolicySnapshot) -> GroupAdmission:
            if group == 1:
                raise OSError("disk full")
            return admission(group=50)

        rollout = rollout_of()
        with pytest.raises(OSError, match="disk full"):
            async with StreamingDriver(rollout, admit_first, PolicySnapshot("v0", 0), per_step=2):
                raise AssertionError("must not be entered")
        assert (rollout.in_flight, rollout.resources.live) == (0, ())
