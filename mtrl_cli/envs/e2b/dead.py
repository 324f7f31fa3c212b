"""Ending the sandboxes of a run that is dead, from what its ledger knows and from their marks."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtrl_cli.envs.e2b.provider import Provider, judged
from mtrl_cli.envs.e2b.sweep import Sweep
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import InfrastructureFailure

_EVERY = 1.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of them. ``trouble`` says why the rest may live; None where nothing does."""

    gone: frozenset[str]
    """Ids that the service says are gone."""
    killed: int
    """How many lived."""
    trouble: str | None


class DeadSandboxes:
    """Sandboxes of dead runs, as one key sees them.

    Args:
        settles: see `mtrl_cli.envs.e2b.backend.Limits`.
        seconds: that ending one may take.
    """

    def __init__(self, provider: Provider, *, settles: float, seconds: float) -> None:
        self._provider = provider
        self._seconds = seconds
        self.settles = settles

    @property
    def place(self) -> str:
        return self._provider.place

    async def listed(self) -> Mapping[str, int]:
        """How many sandboxes live, by the run that made them.

        Raises:
            MtrlError: the service cannot be asked.
        """
        try:
            found = await self._provider.find({"mtrl": "sandbox"})
        except Exception as error:
            raise MtrlError(f"{self.place}: {judged(error).text}") from error
        return Counter(one.metadata.get("mtrl_run", "") for one in found)

    async def end(self, run: str, ids: Sequence[str], until: float) -> Ended:
        """End those with these ids, and look for others of the run until a time of the clock.

        Never raises what the service answers.
        """
        sweep = Sweep(self._provider, run, self._seconds)
        killed, trouble = 0, None
        while True:
            looked = time.time()
            try:
                killed += await sweep.kill_all([one for one in ids if one not in sweep.gone])
                killed += await sweep.all_of_run()
                trouble = None
            except InfrastructureFailure as failure:
                trouble = str(failure)
            except Exception as error:
                trouble = judged(error).text
            if looked >= until:
                return Ended(frozenset(sweep.gone), killed, trouble)
            await asyncio.sleep(min(_EVERY, until - looked))
