"""Slots: a thousand episodes that are admitted at once leave room for others while they begin."""

import asyncio
from collections import Counter

from mtrl_cli.rollout.slots import PER_PASS, Slots


class Passes:
    """Counts the passes of the event loop, and who began in which."""

    def __init__(self) -> None:
        self.now = 0
        self.begun: list[tuple[int, int]] = []
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._count)

    def _count(self) -> None:
        self.now += 1
        self._loop.call_soon(self._count)

    async def episode(self, slots: Slots, number: int, passes: int = 1000) -> None:
        async with slots:
            self.begun.append((self.now, number))
            until = self.now + passes
            while self.now < until:
                await asyncio.sleep(0)


async def test_few_begin_in_one_pass_and_all_in_order() -> None:
    slots, passes = Slots(1000), Passes()
    await asyncio.gather(*(passes.episode(slots, number) for number in range(200)))
    assert [number for _, number in passes.begun] == list(range(200))
    assert max(Counter(when for when, _ in passes.begun).values()) == PER_PASS
    assert passes.begun[-1][0] - passes.begun[0][0] < 2 * 200 / PER_PASS


async def test_one_that_comes_alone_begins_at_once() -> None:
    slots, passes = Slots(8), Passes()
    await asyncio.sleep(0)
    for number in range(3):
        asked = passes.now
        await passes.episode(slots, number, passes=5)
        assert passes.begun[-1] == (asked, number)


async def test_no_more_than_the_concurrency_are_in_flight() -> None:
    slots, passes = Slots(2), Passes()
    await asyncio.gather(*(passes.episode(slots, number, passes=10) for number in range(6)))
    when = [begun for begun, _ in passes.begun]
    assert all(later - earlier >= 10 for earlier, later in zip(when, when[2:], strict=False))


async def test_who_is_cancelled_while_waiting_to_begin_takes_no_slot() -> None:
    slots, passes = Slots(3 * PER_PASS), Passes()
    tasks = [
        asyncio.ensure_future(passes.episode(slots, number, passes=3))
        for number in range(3 * PER_PASS)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    dropped = [task for task in tasks[PER_PASS:] if task.cancel()]
    await asyncio.wait(dropped)
    again = [passes.episode(slots, number, passes=3) for number in range(100, 100 + 3 * PER_PASS)]
    await asyncio.wait_for(asyncio.gather(*again), 10)
    assert all(task.cancelled() for task in dropped)
    begun = [number for _, number in passes.begun]
    assert begun == [*range(len(begun) - len(again)), *range(100, 100 + 3 * PER_PASS)]
    assert len(begun) <= 2 * PER_PASS + len(again)
