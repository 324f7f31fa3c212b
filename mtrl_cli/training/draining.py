"""Work of which a drain keeps nothing."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mtrl_cli.runs.stop import Stage, StopRequest

T = TypeVar("T")


async def until_drain(work: Coroutine[Any, Any, T], stop: StopRequest) -> T | None:
    """Await ``work``; a drain cancels it, and then None comes back once it has settled.

    For what a drain would only wait for: an evaluation, a server that has not answered yet.
    """
    if stop.draining:
        work.close()
        return None
    task = asyncio.ensure_future(work)
    drain = asyncio.ensure_future(stop.reached(Stage.DRAIN))
    try:
        await asyncio.wait({task, drain}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        drain.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return None if task.cancelled() else task.result()
