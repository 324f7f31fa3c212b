"""Ending sandboxes: one by its id, all of a run by its mark, those of dead runs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mtrl_cli.envs.e2b.provider import Found, Provider, judged
from mtrl_cli.rollout.borrow import Holding
from mtrl_cli.rollout.ports import InfrastructureFailure
from mtrl_cli.rollout.resources import RolloutResources

_AT_ONCE = 32
"""Kills in flight of a sweep."""

_FIRST, _LONGEST = 0.2, 3.0
"""Seconds between two attempts."""

_ROUNDS, _LISTS = 10, 6


class Sweep:
    """Ends sandboxes of a run.

    Args:
        seconds: that ending one may take.
    """

    def __init__(self, provider: Provider, run: str, seconds: float) -> None:
        self._provider = provider
        self._run = run
        self._seconds = seconds
        self.gone: set[str] = set()
        """Ids of the sandboxes that are known to be gone."""

    async def kill(self, sandbox: str) -> bool:
        """End it; False when it was gone. Repeated until the service says one or the other.

        Raises:
            InfrastructureFailure: it never did.
        """
        reason, wait = "no answer", _FIRST
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    try:
                        async with asyncio.timeout(max(1.0, self._seconds / 2)):
                            killed = await self._provider.kill(sandbox)
                        self.gone.add(sandbox)
                        return killed
                    except Exception as error:
                        reason = judged(error).text
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, _LONGEST)
        except TimeoutError as error:
            raise InfrastructureFailure(
                f"sandbox {sandbox} could not be killed within {self._seconds:g} s ({reason})"
            ) from error

    async def all_of_run(self) -> int:
        """End every sandbox of the run, until none is listed; how many there were.

        Raises:
            InfrastructureFailure: the service could not be asked, or does not end them.
        """
        ended = 0
        for _ in range(_ROUNDS):
            found = [one.id for one in await self._find({"mtrl_run": self._run})]
            if not found:
                return ended
            ended += await self.kill_all(found)
        raise InfrastructureFailure(f"sandboxes of the run are still listed: {', '.join(found)}")

    async def finish(self, resources: RolloutResources) -> None:
        """At the end of the run: nothing of it is left, and borrows that hung are settled.

        Raises:
            InfrastructureFailure
        """
        hanging = [
            borrow
            for borrow in resources.quarantined
            if borrow.kind == "sandbox" and borrow.id is not None
        ]
        await self.kill_all([str(borrow.id) for borrow in hanging])
        for borrow in hanging:
            resources.change(borrow, Holding.RELEASED)
        await self.all_of_run()

    async def dead(self, over: Callable[[str], bool]) -> str:
        """End the sandboxes of runs that are over; one line about it, if there were any."""
        found = await self._find({"mtrl": "sandbox"})
        left = [one for one in found if over(one.metadata.get("mtrl_run", ""))]
        if not left:
            return ""
        await self.kill_all([one.id for one in left])
        runs = sorted({one.metadata["mtrl_run"] for one in left})
        return f"ended {len(left)} sandbox(es) that dead runs had left: {', '.join(runs)}"

    async def _find(self, metadata: Mapping[str, str]) -> list[Found]:
        """A list that fails is asked for again, within bounds."""
        wait = _FIRST
        for last in range(_LISTS):
            try:
                return await self._provider.find(metadata)
            except Exception as error:
                if last == _LISTS - 1:
                    reason = judged(error).text
                    raise InfrastructureFailure(f"sandboxes cannot be listed: {reason}") from error
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST)
        raise AssertionError

    async def kill_all(self, sandboxes: Sequence[str]) -> int:
        """End these; how many lived.

        Raises:
            InfrastructureFailure: the first of those that could not be ended; the others are.
        """
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(sandbox: str) -> bool:
            async with limit:
                return await self.kill(sandbox)

        results = await asyncio.gather(*map(one, sandboxes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results.count(True)
