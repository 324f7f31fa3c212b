"""What a report tells of one run, read from its folder.

Only steps that stand are told: lines of ``metrics.jsonl`` whose step and attempt have a commit that
no rollback has voided. Times of training calls come from the ledger: from a call's intent to its
answer, as the run saw it.
"""

import math
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
from mtrl_cli.runs.shapes import check_state, read_figures, read_rollbacks

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
    missing: tuple[str, ...]
    """What cannot be told because a file is damaged, a sentence for each file."""

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
        if not isinstance(found, dict):
            return None
        return {name: value for name, value in found.items() if value is not None}

    def total(self, name: str) -> float:
        return sum(float(line.get(name, 0)) for line in self.steps)

    def seconds(self, kind: str) -> float:
        return sum(call.seconds for call in self.calls if call.kind == kind)


def read_facts(record: RunRecord) -> RunFacts:
    """Read what the run's folder holds.

    Raises:
        MtrlError: a file is damaged without which there is nothing to tell; `mtrl verify` says
            where.
    """
    path = record.path
    if record.status == "unreadable":
        raise MtrlError(f"{path / 'run.json'} cannot be read; mtrl verify {record.id} says more")
    check_state(path, record.state)
    history = read_history(path / "commits.jsonl")
    try:
        lines = history.of(read_figures(path / "metrics.jsonl"))
        rollbacks = list(read_rollbacks(path / "commits.jsonl"))
    except (ValueError, LookupError, TypeError) as error:
        raise MtrlError(f"{path}: {error}; mtrl verify {record.id} says where") from error
    missing: list[str] = []
    if record.state.get("step") and not history.commits:
        missing.append(
            _lacks(path / "commits.jsonl", "it is empty or not there", "no step is told")
        )
    settings = _settings(path, missing)
    calls, borrows = _of_ledger(path, missing)
    _look_at_groups(path, missing)
    return RunFacts(
        record=record,
        settings=settings,
        history=history,
        steps=tuple(line for line in lines if "episodes" in line),
        evaluations=tuple(line for line in lines if "eval/mean" in line),
        calls=calls,
        borrows=borrows,
        rollbacks=tuple(rollbacks),
        missing=tuple(missing),
    )


def _lacks(file: Path, why: object, what: str) -> str:
    """A sentence: which file, why, what is not told for it, and who says more."""
    why = getattr(why, "what", why)
    return f"{file.name} cannot be read ({why}): {what}; mtrl verify {file.parent.name} says more"


def _of_ledger(
    path: Path, missing: list[str]
) -> tuple[tuple[CallTotals, ...], Mapping[str, Mapping[str, int]]]:
    """Calls and borrows; none, and a line more in ``missing``, where the ledger is damaged."""
    file = path / "ledger.jsonl"
    try:
        ledger = list(read_records(file))
        calls = _calls(ledger)
        if not all(math.isfinite(call.seconds) for call in calls):
            raise ValueError("a time without bounds")
        return calls, _borrows(ledger)
    except (MtrlError, ArithmeticError, ValueError, LookupError, TypeError) as error:
        what = "training calls, their times and borrows are not told"
        missing.append(_lacks(file, error, what))
        return (), {}


def _look_at_groups(path: Path, missing: list[str]) -> None:
    """What became of groups is told from the commits; that their own file is damaged is told."""
    file = path / "groups.jsonl"
    try:
        for _ in read_records(file):
            pass
    except (MtrlError, ValueError) as error:
        what = "what became of groups is told from commits.jsonl alone"
        missing.append(_lacks(file, error, what))


def _settings(path: Path, missing: list[str]) -> Mapping[str, str]:
    file = path / "config.yaml"
    try:
        composed = compose(str(file))
    except MtrlError as error:  # damaged, or of another version: the figures do not need it
        what = "settings, advantages and texts of tokens are not told"
        missing.append(_lacks(file, str(error).splitlines()[0], what))
        return {}
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
