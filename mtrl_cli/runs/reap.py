"""Settling a run whose process is gone, from its ledger.

Every borrow outside the process that is not released is handed to the reaper of its kind, which
returns it or says why it cannot. What came of it goes to the ledger as soon as it is known, so a
reaping that is interrupted, or repeated, goes on where it stopped. The outcome of a training call
that the server had accepted is asked for once more; without one it becomes *unknown*. Nothing is
sent again. Then the run is marked ``lost``.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.control import Ask, requested
from mtrl_cli.runs.files import DamagedFile, write_document
from mtrl_cli.runs.ledger import Ledger, LedgerEntry, read_ledger
from mtrl_cli.runs.registry import RunRecord

PATIENCE = 30.0
"""Seconds that returning one borrow may take."""

_BY_HAND = "see where it lives and remove it there"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a borrow: what was done, or why it is still there and what to do by hand."""

    released: bool
    how: str
    remedy: str | None = None


Reaper = Callable[[LedgerEntry], Awaitable[Fate]]

Recall = Callable[[LedgerEntry], Awaitable[str]]
"""What became of a training call that the server had accepted: ``done``, ``refused``, ``unknown``.
"""


@dataclass(frozen=True, slots=True)
class Reaped:
    """The report of a reaping, one line an item."""

    returned: tuple[str, ...]
    left: tuple[str, ...]
    unknown_calls: tuple[str, ...]
    """Training calls that may have been executed."""


def read_entries(run: Path, unread: list[int] | None = None) -> list[LedgerEntry]:
    """The run's ledger; ``unread`` gets the numbers of damaged lines, which are passed over.

    Raises:
        MtrlError: it is damaged, which a kill does not explain, and no ``unread`` is there.
    """
    path = run / "ledger.jsonl"
    try:
        return list(read_ledger(path, unread))
    except DamagedFile as error:
        told = f"{path} is damaged ({error.what}): remove by hand what it names"
        raise MtrlError(told) from error


async def reap(
    run: Path,
    entries: Sequence[LedgerEntry],
    reapers: Mapping[str, Reaper],
    recall: Recall,
    patience: Mapping[str, float] = MappingProxyType({}),
) -> Reaped:
    """Settle what ``entries`` leave open. The kinds are reaped in the order of ``reapers``.

    ``patience`` are seconds that returning one borrow of a kind may take, where it is not
    `PATIENCE`.
    """
    order = list(reapers)
    borrows = [e for e in entries if e.entry == "borrow" and e.state != "released"]
    borrows.sort(key=lambda e: order.index(kind) if (kind := _kind(e)) in order else len(order))
    ledger = Ledger(run / "ledger.jsonl")
    try:
        unknown = await _settle_calls(ledger, entries, recall)
        returned, left = [], []
        for borrow in borrows:
            seconds = patience.get(_kind(borrow), PATIENCE)
            fate = await _fate(borrow, reapers.get(_kind(borrow), _no_reaper), seconds)
            if fate.released:
                ledger.borrow(borrow.key, "released", how=fate.how)
                returned.append(f"{_named(borrow)}: {fate.how}")
            else:
                remedy = fate.remedy or borrow.facts.get("remedy") or _BY_HAND
                ledger.borrow(borrow.key, "quarantined", reason=fate.how, remedy=remedy)
                left.append(f"{_named(borrow)} in {_place(borrow)}: {fate.how}; {remedy}")
    finally:
        ledger.close()
    return Reaped(tuple(returned), tuple(left), unknown)


def mark_settled(run: RunRecord, reaped: Reaped) -> None:
    """Write into ``run.json`` what became of the run; a run that had not ended is ``lost``."""
    state = dict(run.state)
    if run.status == "lost":
        state.update(status="lost", ended=state.get("ended") or round(time.time(), 3))
        state["reason"] = state.get("reason") or _reason(run)
    state["borrows"] = {"held": 0, "quarantined": list(reaped.left)}
    before = state.get("reaped", {}).get("returned", [])
    state["reaped"] = {
        "time": round(time.time(), 3),
        **asdict(reaped),
        "returned": [*before, *reaped.returned],
    }
    write_document(run.path / "run.json", json.dumps(state, indent=2) + "\n")


def _reason(run: RunRecord) -> str:
    gone = f"process {run.state.get('pid')} on {run.state.get('host')} is gone"
    killed = requested(run.path, run.attempt) is Ask.KILL
    return f"aborted by mtrl cancel --kill: {gone}" if killed else gone


async def _settle_calls(
    ledger: Ledger, entries: Sequence[LedgerEntry], recall: Recall
) -> tuple[str, ...]:
    """Give every training call an outcome; the ones that may have been executed, in words."""
    unknown = []
    for call in entries:
        if call.entry != "call" or not (call.open or call.state == "unknown"):
            continue
        if call.open:
            outcome = await recall(call) if "request" in call.facts else "unknown"
            reason = "the run was gone before its outcome was known"
            if outcome != "unknown":
                reason += "; the server still knew it"
            ledger.call(call.key, outcome, reason=reason)
            if outcome != "unknown":
                continue
        accepted = (
            f", accepted as request {call.facts['request']}" if "request" in call.facts else ""
        )
        unknown.append(f"{call.key}{accepted}")
    return tuple(unknown)


async def _fate(borrow: LedgerEntry, reaper: Reaper, patience: float) -> Fate:
    try:
        async with asyncio.timeout(patience):
            return await reaper(borrow)
    except TimeoutError:
        return Fate(False, f"its return has not ended within {patience:g} s")
    except MtrlError as error:
        return Fate(False, " ".join(str(error).split()))


async def _no_reaper(borrow: LedgerEntry) -> Fate:
    if _place(borrow) == "this process":
        return Fate(True, "it ended with the run's process")
    return Fate(False, f"no way to return a {_kind(borrow)} is known")


def _kind(borrow: LedgerEntry) -> str:
    return str(borrow.facts.get("kind", "borrow"))


def _place(borrow: LedgerEntry) -> str:
    return str(borrow.facts.get("place", "an unknown place"))


def _named(borrow: LedgerEntry) -> str:
    name = borrow.facts.get("id")
    return _kind(borrow) + (f" {name}" if name is not None else f" ({borrow.key}, id unknown)")
