"""Finishing what was begun, also under cancellation; finding the error that began a failure."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from opcode import opmap
from types import CodeType, CoroutineType
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(
    work: Coroutine[Any, Any, T],
    patience: float | None = None,
    unheard: Callable[[BaseException], None] = lambda error: None,
    unwanted: Callable[[], None] = lambda: None,
) -> T:
    """Await ``work`` to its end even if the caller is cancelled; then the cancellation goes on.

    `asyncio.shield` alone would let the caller leave while the work still runs. Work that does
    not bound itself in time gets ``patience``: so many seconds after the caller's cancellation it
    is cancelled too, and awaited. ``unwanted`` is called at the caller's cancellation: work that
    only waits for its turn may be told so. ``unheard`` gets the error of work that its caller no
    longer waited for.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            if cancelled is None:
                unwanted()
                if patience is not None:
                    asyncio.get_running_loop().call_later(patience, task.cancel)
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        if not task.cancelled() and (lost := task.exception()) is not None:
            unheard(lost)  # the cancellation is what the caller sees
        raise cancelled
    return task.result()


def never_waits(work: object) -> bool:
    """Whether ``work`` is a coroutine without a single ``await``.

    It runs from its beginning to its end in one step, between two passes of the event loop, so no
    cancellation can reach it: it needs no task of its own. What cannot be looked into may wait.
    """
    return type(work) is CoroutineType and _without_await(work.cr_code)


@lru_cache(maxsize=1024)
def _without_await(code: CodeType) -> bool:
    # A coroutine is suspended by this instruction only; in pairs of an opcode and its argument.
    return opmap["YIELD_VALUE"] not in code.co_code[::2]


def original(error: BaseException) -> BaseException:
    """The error inside nested exception groups that was raised first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def is_being_cancelled() -> bool:
    """Whether a CancelledError here is the task's own, and not one that somebody's code raised."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
