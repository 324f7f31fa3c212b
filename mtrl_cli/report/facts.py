"""What a report tells of one run, read from its folder.

Only steps that stand are told: lines of ``metrics.jsonl`` whose step and attempt have a commit that
no rollback has voided. Times of training calls come from the ledger: from a call's intent to its
answer, as the run saw it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.config.compose import compose
from mtrl_cli.config.secrets import leaves
from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.commits import History, read_history
from mtrl_cli.runs.files import read_records
from mtrl_cli.runs.ledger import CALL_OUTCOMES
from mtrl_cli.runs.registry import RunRecord

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallTotals:
    """The training calls of one kind: how many ended how, and how long they took together."""

    kind: str
    outcomes: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run. ``steps`` and ``evaluations`` are lines of metrics.jsonl in the order of steps."""

    record: RunRecord
    settings: Mapping[str, str]
    """Key → value as written, secrets left out."""
    history: History
    steps: tuple[Line, ...]
    evaluations: tuple[Line, ...]
    calls: tuple[CallTotals, ...]
    borrows: Mapping[str, Mapping[str, int]]
    """Kind → state → count."""
    rollbacks: tuple[Line, ...]

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def state(self) -> Mapping[str, Any]:
        return self.record.state

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Groups by what became of them, over the commits that stand."""
        return Counter(self.history.consumed.values())

    @property
    def references(self) -> Mapping[str, float]:
        return dict(self.state.get("references") or {})

    def evaluation(self, label: str) -> Mapping[str, Any] | None:
        found = (self.state.get("evaluation") or {}).get(label)
        return found if isinstance(found, dict) else None

    def total(self, name: str) -> float:
        return sum(float(line.get(name, 0)) for line in self.steps)

    def seconds(self, kind: str) -> float:
        return sum(call.seconds for call in self.calls if call.kind == kind)


def read_facts(record: RunRecord) -> RunFacts:
    """Read what the run's folder holds.

    Raises:
        MtrlError: one of its files is damaged; `mtrl verify` says where.
    """
    path = record.path
    if record.status == "unreadable":
        raise MtrlError(f"{path / 'run.json'} cannot be read; mtrl verify {record.id} says more")
    history = read_history(path / "commits.jsonl")
    try:
        lines = history.of(read_records(path / "metrics.jsonl"))
        ledger = list(read_records(path / "ledger.jsonl"))
        rollbacks = [r for r in read_records(path / "commits.jsonl") if r["kind"] == "rollback"]
        calls, borrows = _calls(ledger), _borrows(ledger)
    except (ValueError, LookupError, TypeError) as error:
        raise MtrlError(f"{path}: {error}; mtrl verify {record.id} says where") from error
    return RunFacts(
        record=record,
        settings=_settings(path),
        history=history,
        steps=tuple(line for line in lines if "episodes" in line),
        evaluations=tuple(line for line in lines if "eval/mean" in line),
        calls=calls,
        borrows=borrows,
        rollbacks=tuple(rollbacks),
    )


def _settings(path: Path) -> Mapping[str, str]:
    try:
        composed = compose(str(path / "config.yaml"))
    except MtrlError:
        return {}  # of another version: the figures do not need it
    return {
        key: "null" if value is None else str(value)
        for key, value, secret in leaves(composed.container)
        if not secret and key != "run.dir"
    }


def _calls(ledger: Iterable[Line]) -> tuple[CallTotals, ...]:
    kinds: dict[str, str] = {}
    begun: dict[str, float] = {}
    ended: dict[str, str] = {}
    seconds: Counter[str] = Counter()
    for line in ledger:
        key, state = line["key"], line["state"]
        if line["entry"] != "call":
            continue
        if state == "intent":
            kinds[key], begun[key], ended[key] = line["kind"], line["time"], "open"
        elif state in CALL_OUTCOMES:
            ended[key] = state
            seconds[kinds[key]] += line["time"] - begun[key]
    return tuple(
        CallTotals(kind, Counter(ended[k] for k in kinds if kinds[k] == kind), seconds[kind])
        for kind in dict.fromkeys(kinds.values())
    )


def _borrows(ledger: Iterable[Line]) -> Mapping[str, Mapping[str, int]]:
    kinds: dict[str, str] = {}
    states: dict[str, str] = {}
    for line in ledger:
        if line["entry"] == "borrow":
            kinds[line["key"]] = line.get("kind", kinds.get(line["key"], "?"))
            states[line["key"]] = line["state"]
    counted: dict[str, Counter[str]] = {}
    for key, kind in kinds.items():
        counted.setdefault(kind, Counter())[states[key]] += 1
    return counted
