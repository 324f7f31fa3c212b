"""Borrows: their life, their record, and who returns what when something goes wrong."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from mtrl_cli.rollout.borrow import Holding
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.resources import RolloutResources
from tests.rollout.helpers import virtual


@dataclass(frozen=True, eq=False)
class Box:
    name: str = "box-id"


@dataclass
class Shelf:
    """Lends numbered boxes and writes down, in one list, everything that happens."""

    log: list[str] = field(default_factory=list)
    live: int = 0
    make_seconds: float = 0.0
    close_seconds: float = 0.0
    on_make: BaseException | None = None
    on_close: BaseException | None = None
    full_disk: set[str] = field(default_factory=set)
    """States that the journal cannot record."""
    entries: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def lender(self, *, external: bool = True) -> Lender[Box]:
        return Lender(
            "box",
            self.make,
            self.give_back,
            external=external,
            place="the shelf",
            identify=lambda box: box.name,
            remedy=lambda name: f"take {name} off the shelf",
        )

    async def make(self, key: str) -> Box:
        self.log.append("make")
        await asyncio.sleep(self.make_seconds)
        if self.on_make is not None:
            raise self.on_make
        self.live += 1
        return Box()

    async def give_back(self, box: Box) -> None:
        self.log.append("give back")
        await asyncio.sleep(self.close_seconds)
        if self.on_close is not None:
            raise self.on_close
        self.live -= 1

    def borrow(self, key: str, state: str, **facts: Any) -> None:
        """The journal."""
        if state in self.full_disk:
            raise OSError("no space left on device")
        self.log.append(state)
        self.entries.append((state, facts))

    def resources(self) -> RolloutResources:
        return RolloutResources(self, patience=2)


async def refuse_cancellation(ends: Awaitable[Any]) -> None:
    """Work like a thread: whoever is cancelled, it goes on."""
    task = asyncio.ensure_future(ends)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue


async def leave(
    resources: RolloutResources, operation: Awaitable[Any], *shelves: Shelf, known: bool = True
) -> None:
    """Borrow a box of each shelf, and be timed out of an operation on the first one."""
    with suppress(TimeoutError):
        async with resources.scope("me") as scope:
            boxes = [await scope.borrow(shelf.lender()) for shelf in shelves]
            async with asyncio.timeout(0.5):
                await scope.protect(operation, boxes[0] if known else None)


class TestRecord:
    @virtual
    async def test_the_intent_comes_before_the_making_and_the_answer_before_the_use(self) -> None:
        shelf = Shelf()
        async with shelf.resources().scope("me") as scope:
            assert isinstance(await scope.borrow(shelf.lender()), Box)
            assert shelf.log == ["requested", "make", "held"]
            assert shelf.entries[-1] == (
                "held", {"kind": "box", "place": "the shelf", "id": "box-id"},
            )  # fmt: skip
        assert shelf.log[3:] == ["returning", "give back", "released"]

    @virtual
    async def test_what_lives_in_the_process_is_recorded_only_when_it_is_left(self) -> None:
        shelf = Shelf(on_close=OSError("stuck"))
        resources = shelf.resources()
        async with resources.scope("me") as scope:
            await scope.borrow(shelf.lender(external=False))
        assert shelf.entries == []
        [left] = await resources.close()
        assert left.state is Holding.QUARANTINED
        assert [state for state, _ in shelf.entries] == ["quarantined"]

    @virtual
    async def test_an_intent_that_cannot_be_recorded_makes_nothing(self) -> None:
        shelf = Shelf(full_disk={"requested"})
        resources = shelf.resources()
        with pytest.raises(OSError, match="no space"):
            async with resources.scope("me") as scope:
                await scope.borrow(shelf.lender())
        assert shelf.log == []
        assert resources.live == ()

    @pytest.mark.parametrize("state", ["held", "returning", "released"])
    def test_what_cannot_be_recorded_is_returned_all_the_same(self, state: str) -> None:
        @virtual
        async def run() -> None:
            shelf = Shelf(full_disk={state})
            resources = shelf.resources()
            try:
                async with resources.scope("me") as scope:
                    await scope.borrow(shelf.lender())
            except OSError:
                assert state == "held"  # whoever borrows learns that the answer is not on disk
            assert (shelf.live, resources.live) == (0, ())

        run()


class TestMaking:
    @virtual
    async def test_a_failing_make_holds_nothing(self) -> None:
        shelf = Shelf(on_make=ValueError("no boxes"))
        resources = shelf.resources()
        with pytest.raises(ValueError, match="no boxes"):
            async with resources.scope("me") as scope:
                await scope.borrow(shelf.lender())
        assert shelf.log == ["requested", "make", "released"]
        assert resources.live == ()

    @virtual
    async def test_a_make_that_fails_before_it_begins_holds_nothing(self) -> None:
        def make(key: str) -> Awaitable[Box]:
            raise ValueError("no key")

        resources = RolloutResources()
        with pytest.raises(ValueError, match="no key"):
            async with resources.scope("me") as scope:
                await scope.borrow(Lender("box", make, Shelf().give_back))
        assert resources.live == ()

    @virtual
    async def test_what_is_made_for_a_waiter_who_was_cancelled_is_returned(self) -> None:
        shelf = Shelf(make_seconds=1)
        resources = shelf.resources()
        with pytest.raises(TimeoutError):
            async with resources.scope("me") as scope, asyncio.timeout(0.5):
                await scope.borrow(shelf.lender())
        assert shelf.log == ["requested", "make", "returning", "give back", "released"]
        assert shelf.entries[1][1]["id"] == "box-id"
        assert (shelf.live, resources.live) == (0, ())

    @virtual
    async def test_a_make_that_hangs_is_cancelled_after_patience(self) -> None:
        shelf = Shelf(make_seconds=1000)
        resources = shelf.resources()
        with pytest.raises(TimeoutError):
            async with resources.scope("me") as scope, asyncio.timeout(1):
                await scope.borrow(shelf.lender())
        assert asyncio.get_running_loop().time() == 3  # the time-out, then patience
        assert shelf.log == ["requested", "make", "released"]

    @virtual
    async def test_who_still_waits_for_a_make_when_the_scope_is_left_gets_nothing(self) -> None:
        shelf = Shelf(make_seconds=1)
        resources = shelf.resources()
        async with resources.scope("me") as scope:
            waiter = asyncio.create_task(scope.borrow(shelf.lender()))
            await asyncio.sleep(0.5)
        with pytest.raises(RuntimeError, match="the scope has been left"):
            await waiter
        assert shelf.log == ["requested", "make", "returning", "give back", "released"]


class TestReturning:
    @virtual
    async def test_a_failing_return_is_named_and_never_hides_the_first_error(self) -> None:
        shelf = Shelf(on_close=OSError("the lid is stuck"))
        resources = shelf.resources()

        async def owner() -> None:
            async with resources.scope("me") as scope:
                await scope.borrow(shelf.lender())
                raise KeyError("first")

        with pytest.raises(KeyError, match="first"):
            await owner()
        [left] = resources.quarantined
        assert left.describe() == (
            "box box-id (me/box-1) in the shelf: the lid is stuck; take box-id off the shelf"
        )
        assert shelf.entries[-1] == (
            "quarantined",
            {
                "kind": "box",
                "place": "the shelf",
                "id": "box-id",
                "reason": "the lid is stuck",
                "remedy": "take box-id off the shelf",
            },
        )

    @virtual
    async def test_one_failing_return_keeps_nobody_else_from_being_returned(self) -> None:
        good, bad = Shelf(close_seconds=1), Shelf(on_close=OSError("stuck"))
        resources = RolloutResources(patience=2)
        async with resources.scope("me") as scope:
            for shelf in (good, bad, good):
                await scope.borrow(shelf.lender())
        assert (good.live, len(resources.live)) == (0, 1)

    @virtual
    async def test_a_return_that_cancels_itself_is_quarantined(self) -> None:
        shelf = Shelf(on_close=asyncio.CancelledError())
        resources = shelf.resources()
        async with resources.scope("me") as scope:
            await scope.borrow(shelf.lender())
        [left] = resources.quarantined
        assert left.reason == "its return was cancelled"

    @virtual
    async def test_a_lender_that_cannot_describe_its_things_gets_them_back(self) -> None:
        def fail(thing: object) -> str:
            raise ZeroDivisionError

        shelf = Shelf()
        resources = shelf.resources()
        lender = Lender("box", shelf.make, shelf.give_back, identify=fail, remedy=fail)
        with pytest.raises(ZeroDivisionError):
            async with resources.scope("me") as scope:
                await scope.borrow(lender)
        assert (shelf.live, resources.live) == (0, ())

    @virtual
    async def test_a_return_that_comes_back_late_is_released_late(self) -> None:
        shelf = Shelf(close_seconds=3)
        resources = shelf.resources()
        async with resources.scope("me") as scope:
            await scope.borrow(shelf.lender())
        [left] = resources.quarantined
        assert left.reason == "its return has not ended within 2 s"
        assert await resources.settle() == ()  # one second later
        assert shelf.log[3:] == ["returning", "give back", "quarantined", "released"]

    @virtual
    async def test_the_end_of_the_run_cancels_what_never_comes_back_and_keeps_its_reason(
        self,
    ) -> None:
        shelf = Shelf(close_seconds=1e5)
        resources = shelf.resources()
        async with resources.scope("me") as scope:
            await scope.borrow(shelf.lender())
        [left] = await resources.close()
        assert left.reason == "its return has not ended within 2 s"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @virtual
    async def test_to_settle_again_changes_nothing(self) -> None:
        shelf = Shelf()
        async with shelf.resources().scope("me") as scope:
            await scope.borrow(shelf.lender())
            await scope.settle()
            await scope.settle()
        assert shelf.log.count("give back") == 1


class TestOperations:
    @virtual
    async def test_a_thing_is_returned_after_the_operation_that_its_waiter_left(self) -> None:
        shelf = Shelf()

        async def operation() -> None:
            await asyncio.sleep(1)
            shelf.log.append("operation ended")

        await leave(shelf.resources(), operation(), shelf)
        assert shelf.log[3:] == ["operation ended", "returning", "give back", "released"]

    @virtual
    async def test_an_operation_that_never_ends_quarantines_what_it_works_on_and_no_more(
        self,
    ) -> None:
        shelf, other, end = Shelf(), Shelf(), asyncio.Event()
        resources = shelf.resources()
        await leave(resources, refuse_cancellation(end.wait()), shelf, other)
        assert (shelf.live, other.live) == (1, 0)
        [left] = resources.quarantined
        assert (left.id, left.reason) == (
            "box-id", "an operation on it has not ended within 2 s",
        )  # fmt: skip
        assert "give back" not in shelf.log
        end.set()
        assert await resources.settle() == ()
        assert shelf.log[-3:] == ["quarantined", "give back", "released"]

    @virtual
    async def test_an_operation_on_nobody_knows_what_keeps_everything(self) -> None:
        shelf, end = Shelf(), asyncio.Event()
        resources = shelf.resources()
        await leave(resources, refuse_cancellation(end.wait()), shelf, known=False)
        assert len(resources.quarantined) == 1
        end.set()
        await resources.settle()

    @virtual
    async def test_a_left_scope_refuses_an_operation_without_a_warning(self) -> None:
        async def operation() -> None:
            raise AssertionError("must not run")

        resources = RolloutResources()
        async with resources.scope("me") as scope:
            pass
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError, match="me: cannot use what was returned"):
                await scope.protect(operation())
            with pytest.raises(RuntimeError, match="me: cannot borrow box"):
                await scope.borrow(Shelf().lender())
            gc.collect()
        assert [str(warning.message) for warning in caught] == []

    @virtual
    async def test_whoever_is_cancelled_again_and_again_still_returns_everything(self) -> None:
        shelf = Shelf(close_seconds=1)
        resources = shelf.resources()

        async def owner() -> None:
            async with resources.scope("me") as scope:
                box = await scope.borrow(shelf.lender())
                await scope.protect(asyncio.sleep(1), box)

        task = asyncio.create_task(owner())
        for _ in range(10):
            await asyncio.sleep(0.15)
            task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert (shelf.live, resources.live) == (0, ())
