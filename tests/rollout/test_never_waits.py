"""An operation without an await runs in its caller's own task, and keeps every promise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.settle import never_waits
from tests.rollout.helpers import virtual
from tests.rollout.test_resources import Box, Shelf, leave


class Quick(Shelf):
    """A shelf that never waits; its boxes know in which task they were handled."""

    async def make(self, key: str) -> Box:
        self.log.append("make")
        if self.on_make is not None:
            raise self.on_make
        self.live += 1
        return Box()

    async def give_back(self, box: Box) -> None:
        self.log.append("give back")
        if self.on_close is not None:
            raise self.on_close
        self.live -= 1


@virtual
async def test_a_life_without_a_task_or_a_pass_of_the_loop() -> None:
    shelf, passes = Quick(), list[str]()
    asyncio.get_running_loop().call_soon(passes.append, "a pass")

    async def operation() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    async with shelf.resources().scope("me") as scope:
        box = await scope.borrow(shelf.lender())
        assert await scope.protect(operation(), box) is asyncio.current_task()
    assert shelf.log == ["requested", "make", "held", "returning", "give back", "released"]
    assert (passes, shelf.live) == ([], 0)


@virtual
async def test_what_waits_beside_it_is_still_protected() -> None:
    quick, slow, done = Quick(), Shelf(close_seconds=0.1), list[str]()

    async def operation() -> None:
        await asyncio.sleep(1)
        done.append("operation")

    await leave(quick.resources(), operation(), slow, quick)
    assert done == ["operation"]
    assert (quick.live, slow.live) == (0, 0)


@virtual
async def test_each_of_two_is_returned_when_only_one_waits() -> None:
    quick, slow = Quick(), Shelf(close_seconds=1)
    resources = RolloutResources(patience=2)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5), resources.scope("me") as scope:
            await scope.borrow(quick.lender())
            await scope.borrow(slow.lender())
    assert (quick.live, slow.live, resources.live) == (0, 0, ())


@virtual
@pytest.mark.parametrize("error", [OSError("broken"), asyncio.CancelledError("by itself")])
async def test_a_failed_making_holds_nothing(error: BaseException) -> None:
    shelf = Quick(on_make=error)
    resources = shelf.resources()
    with pytest.raises(type(error)):
        async with resources.scope("me") as scope:
            await scope.borrow(shelf.lender())
    assert (shelf.log, resources.live) == (["requested", "make", "released"], ())


@virtual
@pytest.mark.parametrize("error", [OSError("broken"), asyncio.CancelledError()])
async def test_a_failed_return_is_quarantined_and_raises_nothing(
    error: BaseException,
) -> None:
    shelf = Quick(on_close=error)
    resources = shelf.resources()
    async with resources.scope("me") as scope:
        await scope.borrow(shelf.lender())
    why = "broken" if isinstance(error, OSError) else "its return was cancelled"
    assert [borrow.reason for borrow in resources.quarantined] == [why]


def test_it_is_known_by_its_code() -> None:
    class Opened:
        async def __aenter__() -> None:
            pass

        async def __aexit__(self, *error: object) -> None:
            pass

    async def plain() -> list[int]:
        return [number + 1 for number in range(3)]

    async def waits() -> None:
        await plain()

    async def enters() -> None:
        async with Opened():
            pass

    async def iterates() -> None:
        async for _ in generator():
            pass

    async def generator() -> AsyncIterator[int]:
        yield 1

    found = []
    for make in (plain, waits, enters, iterates):
        work = make()
        found.append(never_waits(work))
        work.close()
    assert found == [True, False, False, False]
    assert not never_waits(object())
