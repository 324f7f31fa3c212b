"""The lines that a run writes, by name, and something that happens around one of them.

A line's label is what it says: ``optim_step accepted``, ``server_model held``, ``commit``,
``group admitted``. A `Place` is the n-th line of a label, and whether it is before the line, after
the line, or when half of it is written.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtrl_cli.runs.files import RecordFile

When = Literal["before", "torn", "after"]
WHENS: tuple[When, ...] = ("before", "torn", "after")


@dataclass(frozen=True)
class Place:
    label: str
    number: int
    when: When

    def __str__(self) -> str:
        return f"{self.when} {self.label} {self.number}"


def label(file: Path, record: Mapping[str, Any]) -> str:
    """The label of a line."""
    match file.name:
        case "ledger.jsonl" if record["entry"] == "call":
            return f"{record['key'].split('/')[1]} {record['state']}"
        case "ledger.jsonl":
            kind = record["key"].rpartition("/")[2].partition("-")[0]
            return f"{kind} {record['state']}"
        case "groups.jsonl":
            return f"group {record['state']}"
        case "commits.jsonl":
            return str(record["kind"])
    return file.name.partition(".")[0]


Watcher = Callable[[Place, Path, Mapping[str, Any]], None]
"""Hears of a place, the file and the record."""


class Counting:
    """Tells a watcher of every line of one run, before and after it."""

    def __init__(self, watch: Watcher) -> None:
        self._watch = watch
        self._counts: Counter[str] = Counter()

    def append(
        self,
        write: Callable[..., None],
        file: RecordFile,
        record: Mapping[str, Any],
        durable: bool,
    ) -> None:
        name = label(file.path, record)
        self._counts[name] += 1
        for when in WHENS:
            if when == "after":
                write(file, record, durable=durable)
            self._watch(Place(name, self._counts[name], when), file.path, record)


_watched: dict[Path, Counting] = {}
_lock = threading.Lock()
_write = RecordFile.append


def watch(runs: Path, watcher: Watcher) -> None:
    """From now on ``watcher`` hears of every line of the run below ``runs``, in this process."""
    with _lock:
        _watched[runs] = Counting(watcher)
        RecordFile.append = _append  # type: ignore[method-assign]


def unwatch(runs: Path) -> None:
    with _lock:
        _watched.pop(runs, None)


def tear(file: Path, record: Mapping[str, Any]) -> None:
    """Write the first half of a line."""
    text = json.dumps(record, separators=(",", ":"))
    with file.open("a") as out:
        out.write(text[: len(text) // 2])


def _append(self: RecordFile, record: Mapping[str, Any], *, durable: bool = False) -> None:
    counting = _watched.get(self.path.parent.parent)
    if counting is None:
        _write(self, record, durable=durable)
    else:
        counting.append(_write, self, record, durable)
