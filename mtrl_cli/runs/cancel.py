"""Cancelling a run from outside: ask it to end, wait, settle what it left.

A run that lives is asked through its folder and settles itself. Where its process is gone, or it
ended with something not returned, what is left is settled here, by one at a time: whoever comes
second finds it done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs import control
from mtrl_cli.runs.control import Ask
from mtrl_cli.runs.liveness import surely_gone
from mtrl_cli.runs.registry import RunRecord, read_run

if TYPE_CHECKING:
    from mtrl_cli.runs.reap import Reaped  # with asyncio, which most cancels can do without

_LOOK, _GLANCE = 0.5, 0.1
"""Seconds between two looks at the run, and between two at whether its record was written."""
_SHORT = 1.5
"""Seconds that are waited without a word."""
_LINGER = 3.5
"""Seconds that the process of a run that has ended may take to leave."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a run was, what it was asked, what it is now, and what is left of it."""

    run: RunRecord
    was: str
    ended_before: bool
    """It had already ended, and said so, when it was cancelled."""
    asked: Ask
    reaped: "Reaped | None" = None
    """What was settled here; None where there was nothing to do."""

    @property
    def now(self) -> str:
        return self.run.status

    @property
    def left(self) -> tuple[str, ...]:
        return self.run.quarantined


def cancel(
    run: RunRecord,
    ask: Ask,
    wait: float,
    settle: "Callable[[Path], Reaped]",
    waits: Callable[[RunRecord], None],
) -> Cancelled:
    """Bring ``run`` to its end, within ``wait`` seconds if it lives.

    Args:
        settle: returns what a run without a process has left; see
            `mtrl_cli.training.settling.reaping`.
        waits: told once that the run, which lives, takes its time.

    Raises:
        MtrlError: the run's files cannot be read or written.
    """
    run = look(run.path)
    was, ended_before, asked = run.status, _ended(run), ask
    if run.status == "running":
        asked = control.request(run.path, ask, run.attempt)
        run = _await_end(run, min(wait, _SHORT))
        if run.status == "running" and wait > _SHORT:
            waits(run)
            run = _await_end(run, wait - _SHORT)
    if run.status == "unreadable":
        raise MtrlError(f"{run.path / 'run.json'} cannot be read: nothing is known of the run")
    reaped = None
    if _leaves_something(run):
        with control.locked(run.path):
            run, reaped = settled(look(run.path), settle)
    return Cancelled(run, was, ended_before, asked, reaped)


def settled(
    run: RunRecord, settle: "Callable[[Path], Reaped]"
) -> "tuple[RunRecord, Reaped | None]":
    """``run`` after what it left was settled, and what that came to; None where it left nothing.

    The caller holds the run's lock.
    """
    if not _leaves_something(run):
        return run, None
    from mtrl_cli.runs.reap import mark_settled

    reaped = settle(run.path)
    mark_settled(run, reaped)
    return read_run(run.path), reaped


def look(path: Path) -> RunRecord:
    """The run as it stands. It is not taken for lost because two clocks differ."""
    run = read_run(path)
    if run.status == "lost" and not _ended(run) and not surely_gone(run.state, path):
        return replace(run, status="running", alive=True)
    return run


def _ended(run: RunRecord) -> bool:
    return run.state.get("status") != "running"


def _leaves_something(run: RunRecord) -> bool:
    if run.status == "running":
        return False
    return not _ended(run) or run.held > 0 or bool(run.quarantined)


def _await_end(run: RunRecord, wait: float) -> RunRecord:
    """The run as it is when it has ended and its process has left, or when time is up."""
    now = time.monotonic()
    deadline, leaves = now + wait, None
    while True:
        run = look(run.path)
        now = time.monotonic()
        if run.status not in ("running", "unreadable"):
            leaves = leaves or now + _LINGER
            if not run.alive or now >= leaves:
                return run
        if now >= deadline:
            return run
        _pause(run.path / "run.json", min(_LOOK, deadline - now))


def _pause(record: Path, seconds: float) -> None:
    """Sleep, but no longer than until the record is written again."""
    until, before = time.monotonic() + seconds, _version(record)
    while (left := until - time.monotonic()) > 0 and _version(record) == before:
        time.sleep(min(_GLANCE, left))


def _version(record: Path) -> tuple[int, int] | None:
    try:
        facts = record.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns
