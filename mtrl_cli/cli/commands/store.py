"""``mtrl store``: what the embedded server's store holds, what of it is needed, and its removal.

The store's files are read and removed by a process of the server's own package; which of them are
needed is read from the run folders. Before anything goes, the runs concerned are locked, as a
resume does, and looked at again.
"""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import compact, harmless, short_age, table
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.needed import Need, Stored, needs, run_id, stores_of
from mtrl_cli.runs.places import default_store, require_runs_dir, runs_dir_option
from mtrl_cli.runs.registry import RunRecord, list_runs

DAY = 86_400.0
INTERRUPTED = 130
_HEADS = ("run", "status", "age", "snapshots", "size", "may go")
_MAY_GO = (Need.void, Need.between, Need.unknown)
_Judged = Sequence[tuple[Stored, Need]]


def show_store(
    store: Path | None,
    folders: Sequence[Path],
    prune: Collection[str],
    days: int,
    *,
    yes: bool,
    as_json: bool,
) -> int:
    """Print what the store holds, and with ``prune`` remove it, once that is confirmed; the exit
    code.

    Args:
        prune: the kinds of what may go (`Need`).
        days: how old must be what no run is known of.

    Raises:
        UsageError: there is no such store, folder or kind, or nobody to confirm.
        MtrlError: what is needed is not known, or removing failed.
    """
    for wrong in [kind for kind in prune if kind not in _MAY_GO]:
        raise UsageError(f"--prune {wrong}: write one of {', '.join(_MAY_GO)}")
    for folder in folders:
        require_runs_dir(folder)
    root = (store or default_store()).expanduser().resolve()
    held = needs(_tidy(root), folders)
    going = _going(held, prune, days)
    if as_json:
        Screen(sys.stdout).line(json.dumps(_facts(root, held, going), indent=2))
    else:
        options = "" if store is None else f" --store {shlex.quote(str(store))}"
        options += "".join(map(runs_dir_option, folders))
        for line in _told(root, held, folders, days, options):
            Screen(sys.stdout).prose(harmless(line))
    told = Screen(sys.stderr)
    if not prune:
        return 0
    if not going:
        told.line("nothing goes")
        return 0
    told.line(f"to be removed: {_sum(going)}")
    if not yes and not _confirmed(told):
        return 0
    gone = _remove(root, going, folders, prune, days)
    told.line(f"removed: {_sum(gone)}")
    return 0


def _confirmed(screen: Screen) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nothing was removed: add --yes, as there is no terminal to ask at")
    screen.write("remove them for good? [y/N] ")
    screen.flush()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        screen.line("\rnothing was removed")
        raise typer.Exit(INTERRUPTED) from None


def _going(held: _Judged, prune: Collection[str], days: int) -> list[Stored]:
    before = time.time() - days * DAY
    return [
        one
        for one, need in held
        if need in prune and (need is not Need.unknown or one.time < before)
    ]


def _remove(
    root: Path, going: Sequence[Stored], folders: Sequence[Path], prune: Collection[str], days: int
) -> list[Stored]:
    """Remove what may still go, now that nobody can take the runs over; what went."""
    runs = sorted((run.path for run in _runs(folders, {one.run for one in going})), key=str)
    with ExitStack() as locks:
        for path in runs:  # each in the same order, so that two of us do not wait for each other
            locks.enter_context(locked(path))
        still = _going(needs(going, folders), prune, days)
        return _tidy(root, "--remove", told="\n".join(one.uri for one in still))


def _runs(folders: Sequence[Path], ids: Collection[str]) -> list[RunRecord]:
    return [run for folder in folders for run in list_runs(folder) if run_id(run) in ids]


def _tidy(root: Path, *arguments: str, told: str = "") -> list[Stored]:
    command = [sys.executable, "-m", "mtrl_cli.local.tidy", "--store", str(root), *arguments]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise UsageError(words) if done.returncode == 2 else MtrlError(f"the store: {words}")
    return [Stored(**json.loads(line)) for line in done.stdout.splitlines()]


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
        Need.void: "of a run that is over, and none of its commits stands for it",
        Need.between: "of a finished run: neither its first nor its last, not named, not evaluated",
        Need.unknown: f"of no run in {where}: one in another folder may need it (--runs-dir)",
    }
    for kind, text in meaning.items():
        if any(need is kind for _, need in held):
            going = _going(held, (kind,), days)
            yield f"{kind}: {text}"
            asked = f"mtrl store --prune {kind}{options}"
            yield f"  {_sum(going)} may go: {asked}" if going else f"  none is {days} days old yet"
    for other in sorted(stores_of(run for folder in folders for run in list_runs(folder)) - {root}):
        yield f"runs here keep weights elsewhere too: mtrl store --store {shlex.quote(str(other))}"


def _row(run: str, status: str | None, held: _Judged) -> tuple[str, ...]:
    may_go = {kind: [one for one, need in held if need is kind] for kind in _MAY_GO}
    every = [one for one, _ in held]
    return (
        run,
        status or "not known",
        short_age(max(time.time() - max(one.time for one in every), 0.0)),
        str(len(every)),
        _bytes(every),
        ", ".join(f"{_bytes(some)} {kind}" for kind, some in may_go.items() if some) or "-",
    )


def _by_run(held: _Judged) -> list[tuple[str, _Judged]]:
    """The runs, that with the newest snapshot first."""
    runs: dict[str, list[tuple[Stored, Need]]] = {}
    for one in sorted(held, key=lambda pair: -pair[0].time):
        runs.setdefault(one[0].run, []).append(one)
    return list(runs.items())


def _sum(some: Sequence[Stored]) -> str:
    count = "1 snapshot" if len(some) == 1 else f"{len(some):,} snapshots"
    return f"{count}, {_bytes(some)}"


def _bytes(some: Sequence[Stored]) -> str:
    return f"{compact(sum(one.size for one in some))}B"


def _facts(root: Path, held: _Judged, going: Sequence[Stored]) -> dict[str, Any]:
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
    }
