"""What is looked at after a run has ended, from outside of it.

Nothing here asks the run: environments are counted by their files, models by the server, calls by
the requests that the server saw, processes by the system; the run's folder is only compared with
these.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtrl_cli.runs.ledger import LedgerEntry, read_ledger
from mtrl_cli.testing.counted_world import CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.testing.scripted_service import TRAINING

_RECORDS = ("ledger.jsonl", "groups.jsonl", "commits.jsonl", "metrics.jsonl")


def run_folder(cwd: Path) -> Path | None:
    """The folder of the one run below ``cwd``; None where no run began."""
    runs = cwd / "runs"
    # A name with a dot is the link `latest` on its way: gone before it is looked at.
    names = list(runs.iterdir()) if runs.exists() else []
    found = [path for path in names if path.name[0] != "." and not path.is_symlink()]
    assert len(found) <= 1
    return found[0] if found else None


def state(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return loaded


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def committed(folder: Path) -> int:
    """How many steps the run has committed; step 0, what it began from, is not counted."""
    return sum(record["step"] > 0 for record in records(folder, "commits.jsonl"))


def entries(folder: Path) -> list[LedgerEntry]:
    return list(read_ledger(folder / "ledger.jsonl"))


def torn(folder: Path, *, aborted: bool = False) -> Iterator[str]:
    """Record files that hold anything but whole lines, and documents half written, which an abort
    in that moment leaves beside the whole one until the run is settled."""
    for name in _RECORDS:
        data = (folder / name).read_bytes()
        try:
            whole = not data or data.endswith(b"\n")
            for line in data.splitlines():
                json.loads(line)
        except ValueError:
            whole = False
        if not whole:
            yield f"{name} holds a torn line"
    if not aborted:
        yield from (f"{path.name} was left" for path in folder.rglob("*.tmp"))


def repeated(server: ScriptedPolicyServer, *, reaped: bool = False) -> Iterator[str]:
    """Training calls that were sent more than once; a reaping may unload once more."""
    sent: Counter[tuple[Any, ...]] = Counter()
    for request in server.requests():
        if request.endpoint in TRAINING and not (reaped and request.endpoint == "unload_model"):
            body = request.body
            sent[request.endpoint, body.get("session_id"), body.get("model_id"),
                 body.get("seq_id")] += 1  # fmt: skip
    yield from (f"{key[0]} {key[3]} sent {count} times" for key, count in sent.items() if count > 1)


def unaccounted(
    folder: Path, server: ScriptedPolicyServer, *, reaped: bool = False
) -> Iterator[str]:
    """Calls that took effect and that the ledger does not know.

    A reaping records its unloading at the borrow.
    """
    known = Counter(
        (entry.facts["kind"], entry.facts.get("seq"))
        for entry in entries(folder)
        if entry.entry == "call"
    )
    names = {"save_weights_for_sampler": "publish", "save_weights": "save_state"}
    for call in server.applications():
        key = (names.get(call.kind, call.kind), call.seq)
        if not known[key] and not (reaped and call.kind == "unload_model"):
            yield f"{key[0]} took effect and is not in the ledger"


def unfinished_entries(folder: Path) -> Iterator[str]:
    yield from (f"{entry.key} ends as {entry.state}" for entry in entries(folder) if entry.open)


def groups_without_end(folder: Path) -> Iterator[str]:
    """Groups that were admitted and of which the folder does not say what became of them."""
    last: dict[int, str] = {}
    for record in records(folder, "groups.jsonl"):
        last[record["group"]] = record["state"]
    yield from (f"group {group} has no end" for group, said in last.items() if said == "admitted")


def misused(world: CountedWorld) -> Iterator[str]:
    """Instances that were closed twice, or used after their end."""
    closed: set[int] = set()
    for event, number in world.events():
        if number in closed:
            yield f"instance {number}: {event} after its close"
        if event == "close":
            closed.add(number)


def processes_of(mark: str) -> list[int]:
    """Processes whose command line holds ``mark``, but this one."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                line = (path / "cmdline").read_bytes().decode(errors="replace")
                dead = (path / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if mark in line and not dead:
                found.append(int(path.name))
    return found


def none_left(mark: str, seconds: float = 0.0) -> bool:
    """Whether no such process is left, or remains after so many seconds."""
    deadline = time.monotonic() + seconds
    while processes_of(mark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True
