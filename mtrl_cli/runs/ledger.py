"""The ledger: every borrow and every training call of a run, intent before deed.

Each line of ``ledger.jsonl`` moves one entry, named by its ``key``, to its next state:

- a **call** (training call): intent → accepted (with the server's request id) → done, refused
  (surely not executed) or unknown (it may have been);
- a **borrow** (server-side model, child process, …): requested → held (with the id it has where
  it lives) → returning → released or quarantined.

Every line is handed to the system at once, and so outlives a kill of the process. The intent of a
training call, and an outcome that is not a success, are also on disk (fsync) before the next thing
happens. A success goes there with the next intent, or with the `sync` before a commit, whichever
comes first: an fsync stalls sampling, and a machine that goes down in between leaves a call
without an outcome, which is taken as unknown.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.runs.files import DamagedFile, RecordFile, record_of, redacted, whole_lines

CALL_OUTCOMES = ("done", "refused", "unknown")
BORROW_ENDS = ("released", "quarantined")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Where one entry stands. ``facts`` are all facts recorded about it, newest last."""

    key: str
    entry: str
    """``call`` or ``borrow``."""
    state: str
    facts: dict[str, Any]

    @property
    def open(self) -> bool:
        return self.state not in (*CALL_OUTCOMES, *BORROW_ENDS)


def unstepped(entries: Iterable[LedgerEntry]) -> tuple[str, ...]:
    """The models that hold, or may hold, gradients that no optimizer step has consumed.

    A step that was executed clears them; one of unknown outcome may not have.
    """
    models: dict[str, None] = {}
    for entry in entries:
        kind = entry.facts.get("kind")
        if kind == "forward_backward" and entry.state != "refused":
            models[str(entry.facts.get("model"))] = None
        elif kind == "optim_step" and entry.state == "done":
            models.clear()
    return tuple(models)


class Ledger:
    """The writing side: of the run, and of what settles it after its process is gone.

    ``redact`` takes secrets out of the texts that are recorded.
    """

    def __init__(self, path: Path, redact: Callable[[str], str] = str) -> None:
        self._file = RecordFile(path)
        self._redact = redact

    def call(self, key: str, state: str, **facts: Any) -> None:
        self._append("call", key, state, facts, durable=state not in ("accepted", "done"))

    def sync(self) -> None:
        """Everything recorded so far is on disk."""
        self._file.sync()

    def borrow(self, key: str, state: str, **facts: Any) -> None:
        self._append("borrow", key, state, facts)

    def close(self) -> None:
        self._file.close()

    def _append(
        self, entry: str, key: str, state: str, facts: dict[str, Any], *, durable: bool = False
    ) -> None:
        told = redacted(facts, self._redact)
        now = round(time.time(), 3)
        line = {"entry": entry, "key": key, "state": state, "time": now, **told}
        self._file.append(line, durable=durable)


def read_ledger(path: Path, unread: list[int] | None = None) -> Iterator[LedgerEntry]:
    """Every entry in its latest state, in the order in which they began.

    ``unread`` gets the numbers of the lines that are damaged; without it they are not passed over.

    Raises:
        DamagedFile: one is.
    """
    entries: dict[str, LedgerEntry] = {}
    for number, raw in whole_lines(path):
        try:
            _enter(entries, record_of(raw, path, number), path, number)
        except DamagedFile:
            if unread is None:
                raise
            unread.append(number)
    yield from entries.values()


def _enter(entries: dict[str, LedgerEntry], line: dict[str, Any], path: Path, number: int) -> None:
    """Raises: DamagedFile: the record is not one of `Ledger`'s."""
    try:
        key, state, entry = line.pop("key"), line.pop("state"), line.pop("entry")
        known = entries[key].facts if key in entries else {}
    except (KeyError, TypeError):  # the latter of a key that is none
        raise DamagedFile(path, f"line {number} is no entry of a ledger") from None
    entries[key] = LedgerEntry(key, entry, state, {**known, **line})
