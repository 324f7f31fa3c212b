"""Returning the sandboxes of a run that is gone: all at once, then each borrow is told its fate.

Those whose ids the ledger knows are ended by them; the others of the run are found by their mark.
A creation that was sent and has no id may still make its sandbox, until the service's own deadline
has passed after the sending, which the ledger knows; so long it is looked for. One that only waited
for its turn was never sent.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.ledger import LedgerEntry
from mtrl_cli.runs.reap import Fate

SANDBOX, ACCOUNT = "sandbox", "sandboxes"
"""Kinds of borrows: one sandbox, and the run's use of the account."""

PATIENCE = 240.0
"""Seconds that all of it may take."""


class Ended(Protocol):
    """What became of a run's sandboxes."""

    @property
    def gone(self) -> frozenset[str]:
        """Ids that the service says are gone."""
        ...

    @property
    def killed(self) -> int:
        """How many lived."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why the rest may live; None where nothing does."""
        ...


class DeadSandboxes(Protocol):
    """A service of sandboxes, as one key sees it."""

    @property
    def settles(self) -> float:
        """Seconds after which a creation that was not answered can have no further effect."""
        ...

    @property
    def place(self) -> str: ...

    async def end(self, run: str, ids: Sequence[str], until: float) -> Ended:
        """End those with these ids, and look for others of the run until a time of the clock."""
        ...


class SandboxReaping:
    """The sandboxes of one run.

    Args:
        service: how to get at them; called when it is needed, and raises MtrlError.
        tell: hears in one line what takes long.
    """

    def __init__(
        self,
        run: Path,
        entries: Sequence[LedgerEntry],
        service: Callable[[], DeadSandboxes],
        tell: Callable[[str], None],
    ) -> None:
        self._run = run
        self._borrows = [e for e in entries if e.facts.get("kind") == SANDBOX]
        self._service = service
        self._tell = tell
        self._ended: Ended | None = None

    async def reap(self, borrow: LedgerEntry) -> Fate:
        name = borrow.facts.get("id")
        if self._ended is None:
            try:
                self._ended = await self._end(str(borrow.facts.get("place")))
            except MtrlError as error:  # the service is not to be had, or is another one
                return Fate(False, " ".join(str(error).split()), self._by_hand(name))
        ended = self._ended
        if borrow.facts.get("kind") == SANDBOX and name is not None:
            if name in ended.gone:
                return Fate(True, "gone")
            trouble = ended.trouble or "the service did not say that it is gone"
            return Fate(False, trouble, self._by_hand(name))
        if ended.trouble is not None:
            return Fate(False, ended.trouble, self._by_hand())
        return Fate(True, f"{ended.killed} ended, none is left")

    async def _end(self, place: str) -> Ended:
        service = self._service()
        if service.place != place:
            raise MtrlError(f"the run's sandboxes are in {place}; now it leads to {service.place}")
        open_ = [e for e in self._borrows if e.state != "released"]
        ids = [str(e.facts["id"]) for e in open_ if "id" in e.facts]
        sent = [float(e.facts["sent"]) for e in open_ if "id" not in e.facts and "sent" in e.facts]
        until = max(sent) + service.settles if sent else 0.0
        if (left := until - time.time()) > 0:
            self._tell(
                f"{len(sent)} sandbox(es) of {self._run.name} whose creation was not answered may"
                f" still appear: looking for them, {left:.0f} s"
            )
        return await service.end(self._run.name, ids, until)

    def _by_hand(self, name: object = None) -> str:
        if name is not None:
            return f"e2b sandbox kill {name}"
        return f"e2b sandbox list, and kill those with mtrl_run {self._run.name}"
