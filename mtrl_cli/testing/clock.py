"""A virtual clock: an event loop whose time jumps to the next timer when nothing is ready.

Seconds of scripted delay cost no seconds, and the order of events depends on the script alone::

    run_virtual(main())      # returns what main returns; hours of sleep take milliseconds

Nothing outside the loop may be waited for: no socket, no thread, no subprocess. In exchange a
program that waits for something that no timer brings is found at once (`Deadlock`), and two runs
of one script do the same things in the same order: tasks hash by their number, not by their
address, so that sets of tasks are walked alike.
"""

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

HORIZON = 1e4
"""Virtual seconds after which a program counts as running for ever."""


class Deadlock(RuntimeError):  # noqa: N818
    """Every task waits, and no timer is set."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. ``reported`` collects what nobody caught."""

    def __init__(self) -> None:
        self._now = 0.0
        self._horizon = HORIZON
        self._numbers = itertools.count(1)
        self.reported: list[str] = []
        super().__init__(_Jump(self._pass))
        self._clock_resolution = 1e-9
        self.set_task_factory(self._numbered)
        self.set_exception_handler(self._report)

    def time(self) -> float:
        return self._now

    def _pass(self, seconds: float | None) -> None:
        if seconds is None:
            raise Deadlock(f"at {self._now:g} s every task waits for what no timer brings")
        self._now += seconds
        if self._now > self._horizon:
            self._horizon = self._now + HORIZON  # for what ends the program now
            raise Deadlock(f"still running after {self._now:g} virtual seconds")

    def _numbered(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        return _NumberedTask(next(self._numbers), work, loop, context)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.reported.append(f"{context['message']}: {context.get('exception')!r}")


class _NumberedTask(asyncio.Task[Any]):
    def __init__(
        self,
        number: int,
        work: Any,
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._number = number  # first: the base class puts the task into a set
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Jump(selectors.SelectSelector):
    """Passes virtual time instead of waiting; nothing is ever ready."""

    def __init__(self, pass_: Callable[[float | None], None]) -> None:
        super().__init__()
        self._pass = pass_

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._pass(timeout)
        return []


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a virtual clock.

    Raises:
        Deadlock: the program waits for ever.
    """
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
