"""``mtrl store``: what the embedded server's store holds, what of it is needed, and its removal.

The store's files are read and removed by a process of the server's own package; which of them are
needed is read from the run folders. Before anything goes, the runs concerned are locked, as a
resume does, and looked at again. However a removal ends, what went is told.
"""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtrl_cli.cli.commands.giving_up import mark, to_give_up, waiting, why_none
from mtrl_cli.cli.failures import interruptible
from mtrl_cli.display.lines import counted
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import compact, harmless, short_age, table
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.needed import Need, Stored, needs, players, run_id, stores_of
from mtrl_cli.runs.places import default_store, require_runs_dir, runs_dir_option
from mtrl_cli.runs.registry import RunRecord, given_up, list_runs, read_run

DAY = 86_400.0
INTERRUPTED = 130
_HEADS = ("run", "status", "age", "snapshots", "size", "may go, by kind")
_MAY_GO = (Need.void, Need.between, Need.unknown)
_LOST = "it can be neither resumed nor evaluated again, but for what has a name or others play"
_SHOWN = 10
"""Places that are named, of those left alone."""

_Judged = Sequence[tuple[Stored, Need]]


@dataclass(frozen=True, slots=True)
class _Tidied:
    """What the store's process tells."""

    stored: list[Stored]
    """What it holds, or what went."""
    left: list[tuple[str, str]]
    """What it leaves alone: the place in the store, and why in words that follow it."""
    stopped: int | None
    """The number of the signal that ended it early."""
    fault: MtrlError | None


def show_store(
    store: Path | None,
    folders: Sequence[Path],
    prune: Collection[str],
    days: int,
    *,
    give_up: str | None = None,
    yes: bool,
    as_json: bool,
) -> int:
    """Print what the store holds, and with ``prune`` or ``give_up`` remove it, once that is
    confirmed; the exit code.

    Args:
        prune: the kinds of what may go (`Need`).
        days: how old must be what no run is known of.
        give_up: the run of which all goes that nobody else needs.

    Raises:
        StillRunning: the run to be given up lives.
        UsageError: there is no such store, folder or kind, or nobody to confirm.
        MtrlError: what is needed is not known, or removing failed.
    """
    for wrong in [kind for kind in prune if kind not in _MAY_GO]:
        raise UsageError(f"--prune {wrong}: write one of {', '.join(_MAY_GO)}")
    for folder in folders:
        require_runs_dir(folder)
    folders = _distinct(folders)
    root = (store or default_store()).expanduser().resolve()
    found = _tidy(root)
    if found.stopped:
        return 128 + found.stopped
    if found.fault:
        raise found.fault
    lost = None if give_up is None else to_give_up(folders, give_up)
    if lost is not None:
        prune, folders = (Need.void,), _distinct((*folders, lost.path.parent))
    giving = () if lost is None else (lost.path,)
    held = needs(found.stored, folders, giving)
    going = _going(held, prune, days, lost)
    playing = [] if lost is None else players(folders)
    wait = 0
    if playing:
        free = needs(found.stored, folders, giving, untold=False)
        wait = len(_going(free, prune, days, lost)) - len(going)
    if as_json:
        facts = _facts(root, held, going, found.left)
        Screen(sys.stdout).line(json.dumps(facts, indent=2))
    elif lost is None:
        options = "" if store is None else f" --store {shlex.quote(str(store))}"
        options += "".join(map(runs_dir_option, folders))
        for line in _told(root, held, folders, days, options):
            Screen(sys.stdout).prose(harmless(line))
        for line in _left(found.left):
            Screen(sys.stdout).prose(harmless(f"left alone: {line}"))
    told = Screen(sys.stderr)
    if not prune:
        return 0
    if lost is not None and wait > 0:
        told.prose(harmless(waiting(wait, lost, playing)))
    if not going:
        if wait > 0:
            return 1
        if lost is not None and not given_up(lost):
            mine = [need for one, need in held if one.run == run_id(lost)]
            raise UsageError(f"--give-up {give_up}: {why_none(root, mine, lost)}")
        told.line("nothing goes")
        return 0
    try:
        with interruptible():
            if lost is not None:
                told.prose(harmless(f"{lost.id} ({lost.status}): {_LOST}"))
            told.line(f"to be removed: {_sum(going)}")
            if not yes and not _confirmed(told):
                return 0
            if lost is not None:
                mark(lost.path)
            done = _remove(root, going, folders, prune, days, lost)
    except KeyboardInterrupt:
        marked = lost is not None and given_up(read_run(lost.path))
        told.line(f"\rnothing was removed{'; the run is given up' if marked else ''}")
        return INTERRUPTED
    told.line(f"removed: {_sum(done.stored)}{'; interrupted' if done.stopped else ''}")
    for line in _left(done.left):
        told.prose(harmless(f"left: {line}"))
    if done.stopped:
        return 128 + done.stopped
    if done.fault:
        raise done.fault
    return 1 if done.left or wait > 0 else 0


def _confirmed(screen: Screen) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nothing was removed: add --yes, as there is no terminal to ask at")
    screen.write("remove them for good? [y/N] ")
    screen.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _distinct(folders: Sequence[Path]) -> list[Path]:
    """Each folder once, whatever it is called."""
    return list({folder.resolve(): folder for folder in reversed(folders)}.values())[::-1]


def _going(
    held: _Judged, prune: Collection[str], days: int, lost: RunRecord | None = None
) -> list[Stored]:
    """What goes; of a run that is given up alone, where there is one."""
    before = time.time() - days * DAY
    return [
        one
        for one, need in held
        if need in prune
        and (need is not Need.unknown or one.time < before)
        and (lost is None or one.run == run_id(lost))
    ]


def _remove(
    root: Path,
    going: Sequence[Stored],
    folders: Sequence[Path],
    prune: Collection[str],
    days: int,
    lost: RunRecord | None,
) -> _Tidied:
    """Remove what may still go, now that nobody can take the runs over; what went."""
    runs = sorted((run.path for run in _runs(folders, {one.run for one in going})), key=str)
    with ExitStack() as locks:
        for path in runs:  # each in the same order, so that two of us do not wait for each other
            locks.enter_context(locked(path))
        still = _going(needs(going, folders), prune, days, lost)
        done = _tidy(root, "--remove", told="\n".join(one.uri for one in still))
    if lost is None:
        return done
    late = [(one.uri, "is needed since: type the same again") for one in going if one not in still]
    return replace(done, left=[*done.left, *late])


def _runs(folders: Sequence[Path], ids: Collection[str]) -> list[RunRecord]:
    return [run for folder in folders for run in list_runs(folder) if run_id(run) in ids]


def _tidy(root: Path, *arguments: str, told: str = "") -> _Tidied:
    """Run the store's process to its end. A signal ends it behind the file that it is at."""
    command = [sys.executable, "-m", "mtrl_cli.local.tidy", "--store", str(root), *arguments]
    pipe = subprocess.PIPE
    with _signals() as signals:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        signals.process = process
        if signals.number:
            process.terminate()
        out, err = process.communicate(told)
    facts = [json.loads(line) for line in out.splitlines()]
    fault: MtrlError | None = None
    if process.returncode and not signals.number:
        words = (err.strip().splitlines() or ["its process ended without a word"])[-1]
        fault = UsageError(words) if process.returncode == 2 else MtrlError(f"the store: {words}")
    return _Tidied(
        [Stored(**one) for one in facts if "uri" in one],
        [(one["left"], one["why"]) for one in facts if "left" in one],
        signals.number,
        fault,
    )


@dataclass(slots=True)
class _Signals:
    process: subprocess.Popen[str] | None = None
    number: int | None = None

    def stop(self, number: int, _frame: object) -> None:
        self.number = number
        if self.process is not None:
            self.process.terminate()


@contextmanager
def _signals() -> Iterator[_Signals]:
    """SIGINT and SIGTERM end the process that is set inside; one that is ignored stays so."""
    signals = _Signals()
    asked = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, signals.stop) for number in asked}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what is told -------------------------------------------------------------------------------


def _told(
    root: Path, held: _Judged, folders: Sequence[Path], days: int, options: str
) -> Iterator[str]:
    yield f"{root}: {_sum([one for one, _ in held])}"
    status = {run_id(run): run.status for run in _runs(folders, {one.run for one, _ in held})}
    rows = [_row(run, status.get(run), of) for run, of in _by_run(held)]
    yield from table([_HEADS, *rows]) if rows else ()
    where = ", ".join(map(str, folders))
    meaning = {
        Need.void: "of a run that is over, and none of its commits stands for it; runs in other "
        "folders are not seen: a copy of it may need it (--runs-dir)",
        Need.between: "of a finished run: neither its first nor its last, not named, not "
        "evaluated; runs in other folders are not seen: a name or a copy there may need it, and "
        "an evaluation that plays it fails (--runs-dir)",
        Need.unknown: f"of no run in {where}, or of an attempt that is not there: one in another "
        "folder may need it (--runs-dir)",
    }
    for kind, text in meaning.items():
        if any(need is kind for _, need in held):
            going = _going(held, (kind,), days)
            yield f"{kind}: {text}"
            asked = f"mtrl store --prune {kind}{options}"
            yield f"  {_sum(going)} may go: {asked}" if going else f"  none is {days} days old yet"
    for other in sorted(stores_of(run for folder in folders for run in list_runs(folder)) - {root}):
        yield f"runs here keep weights elsewhere too: mtrl store --store {shlex.quote(str(other))}"


def _left(left: Sequence[tuple[str, str]]) -> Iterator[str]:
    for place, why in left[:_SHOWN]:
        yield f"{place} {why}"
    if len(left) > _SHOWN:
        yield f"and {len(left) - _SHOWN:,} more"


def _row(run: str, status: str | None, held: _Judged) -> tuple[str, ...]:
    may_go = {kind: [one for one, need in held if need is kind] for kind in _MAY_GO}
    every = [one for one, _ in held]
    return (
        run,
        status or "not known",
        short_age(max(time.time() - max(one.time for one in every), 0.0)),
        str(len(every)),
        _bytes(every),
        ", ".join(f"{kind} {_bytes(some)}" for kind, some in may_go.items() if some) or "-",
    )


def _by_run(held: _Judged) -> list[tuple[str, _Judged]]:
    """The runs, that with the newest snapshot first."""
    runs: dict[str, list[tuple[Stored, Need]]] = {}
    for one in sorted(held, key=lambda pair: -pair[0].time):
        runs.setdefault(one[0].run, []).append(one)
    return list(runs.items())


def _sum(some: Sequence[Stored]) -> str:
    return f"{counted(len(some), 'snapshot')}, {_bytes(some)}"


def _bytes(some: Sequence[Stored]) -> str:
    return f"{compact(sum(one.size for one in some))}B"


def _facts(
    root: Path, held: _Judged, going: Sequence[Stored], left: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    goes = {one.uri for one in going}
    return {
        "store": str(root),
        "bytes": sum(one.size for one, _ in held),
        "snapshots": [
            {
                "uri": one.uri,
                "run": one.run,
                "size": one.size,
                "time": round(one.time, 3),
                "need": str(need),
                "goes": one.uri in goes,
            }
            for one, need in held
        ],
        "left_alone": [{"place": place, "why": why} for place, why in left],
    }
