"""Creations whose answer was lost: a sandbox may be there, and nobody has its id.

Each is a borrow of its own, so that it is on disk and in every report. Until the service can no
longer act on the request (its own deadline), the run's sandboxes are listed again and again; one
that carries the lost creation's mark is killed. An empty list proves nothing before that, as a
sandbox is listed only once it has started.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mtrl_cli.envs.e2b.provider import Found, Provider, judged
from mtrl_cli.rollout.borrow import Borrow, Holding
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.resources import RolloutResources

LOOKS = 20
"""How often it is looked, up to the service's deadline."""

_SOONEST = 0.1
_GRACE = 15.0
"""Seconds beyond the deadline for a list that fails."""


@dataclass(frozen=True, slots=True)
class _Creation:
    borrow: Borrow
    until: float
    """On the loop's clock."""


class LostCreations:
    """Those of one run.

    Args:
        settles: seconds from a request until it can have no further effect.
        kill: ends a sandbox, whatever it takes; raises when it cannot.
    """

    def __init__(
        self,
        provider: Provider,
        resources: RolloutResources,
        run: str,
        settles: float,
        kill: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._provider = provider
        self._resources = resources
        self._run = run
        self._settles = settles
        self._kill = kill
        self._open: dict[tuple[str, str], _Creation] = {}
        self._looking: asyncio.Task[None] | None = None
        self._trouble = ""

    def add(self, owner: str, tried: int, sent: float, lender: Lender[Any]) -> None:
        """A creation for ``owner`` of unknown outcome, sent at a time on the loop's clock."""
        borrow = self._resources.request(lender, owner)
        clock = asyncio.get_running_loop().time
        self._resources.note(borrow.key, sent=round(time.time() - (clock() - sent), 3))
        until = sent + self._settles
        self._open[owner, str(tried)] = _Creation(borrow, until)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())

    @property
    def seconds_left(self) -> float:
        """How long until all of them are known; 0 when there are none."""
        now = asyncio.get_running_loop().time()
        return max((one.until - now for one in self._open.values()), default=0.0)

    @property
    def count(self) -> int:
        return len(self._open)

    async def settle(self) -> None:
        """Wait until all are known, or quarantined."""
        if self._looking is not None:
            await self._looking

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._open:
            await asyncio.sleep(max(_SOONEST, self._settles / LOOKS))
            now = clock()
            try:
                found = await self._provider.find({"mtrl_run": self._run})
                await self._end(found)
            except Exception as error:
                self._trouble = judged(error).text
                self._give_up(now - _GRACE, "the service could not be asked: " + self._trouble)
                continue
            for mark, one in list(self._open.items()):
                if one.until <= now:  # this list was asked for after the deadline
                    del self._open[mark]
                    self._resources.change(one.borrow, Holding.RELEASED)

    async def _end(self, found: list[Found]) -> None:
        for sandbox in found:
            told = sandbox.metadata
            mark = (told.get("mtrl_borrow", ""), told.get("mtrl_try", ""))
            if mark not in self._open:
                continue
            borrow = self._open[mark].borrow
            if borrow.id is None:
                self._resources.change(borrow, Holding.HELD, id=sandbox.id)
            await self._kill(sandbox.id)
            del self._open[mark]
            self._resources.change(borrow, Holding.RELEASED)

    def _give_up(self, before: float, reason: str) -> None:
        for mark, one in list(self._open.items()):
            if one.until <= before:
                del self._open[mark]
                remedy = f"e2b sandbox list, and kill those with mtrl_run {self._run}"
                self._resources.change(
                    one.borrow, Holding.QUARANTINED, reason=reason, remedy=remedy
                )
