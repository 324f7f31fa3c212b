"""``ledger.jsonl``: every training call and every borrow, in order.

A **call** goes intent → accepted → done, refused or unknown, and past accepted where the server
answers with the result and promises nothing (Twinkle); a later attempt may still learn what became
of an accepted one. One call at a time: no intent while another call has no outcome. The
sequence numbers of a model are 1, 2, 3, …; a model belongs to one attempt. An optimizer step
follows at least one forward/backward that is done; after an unknown call an attempt does nothing
but return its model. A **borrow** goes requested → held → returning → released or quarantined.

What the commits say must rest on it: the policy and the training state of a commit are results of
calls of its own attempt that are done, and an attempt has stepped the optimizer once for each
policy step that it committed, plus at most one that a kill or a failure kept from its commit.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mtrl_cli.runs.ledger import BORROW_ENDS, CALL_OUTCOMES
from mtrl_cli.runs.verify.commits import FILE as COMMITS
from mtrl_cli.runs.verify.commits import Commits
from mtrl_cli.runs.verify.lines import Line
from mtrl_cli.runs.verify.report import Report

FILE = "ledger.jsonl"
_ATTEMPT = re.compile(r"a(\d+)/")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMED = ("publish", "save_state")
"""One whose reply was lost may have been found by its name in the server's list."""

_CALL_STEPS: Mapping[str | None, tuple[str, ...]] = {
    None: ("intent",),
    "intent": ("accepted", "refused", "unknown"),
    "accepted": ("done", "refused", "unknown"),
}
_BORROW_STEPS: Mapping[str | None, tuple[str, ...]] = {
    # What lives in the process is recorded only where it was not returned.
    None: ("requested", "held", "returning", "quarantined"),
    "requested": ("requested", "held", "returning", "released", "quarantined"),
    "held": ("returning", "released", "quarantined"),
    "returning": ("released", "quarantined"),
    "quarantined": ("returning", "released", "quarantined", "requested"),
    "released": ("requested",),
}


@dataclass(slots=True)
class Call:
    key: str
    line: int
    kind: str
    attempt: int | None
    model: str | None
    seq: int | None
    state: str
    request: str | None = None
    result: str | None = None
    """What a call that is done returned, where that is a name."""

    @property
    def open(self) -> bool:
        return self.state not in CALL_OUTCOMES


@dataclass(slots=True)
class Entries:
    """``calls`` by key, in the order of their intents; ``borrows``: key → (line, state)."""

    calls: dict[str, Call] = field(default_factory=dict)
    borrows: dict[str, tuple[int, str]] = field(default_factory=dict)


def read_entries(lines: Sequence[Line], report: Report, *, promises: bool = True) -> Entries:
    """Follow every entry through its states; ``promises``: calls are accepted before they are
    done."""
    entries = Entries()
    for line in lines:
        try:
            kind, key, state = (str(line.record[name]) for name in ("entry", "key", "state"))
        except LookupError as error:
            report.found(FILE, line.number, f"is no entry: {error} is missing")
            continue
        if kind == "call":
            _follow_call(entries, key, state, line, report, promises)
        elif kind == "borrow":
            _follow_borrow(entries, key, state, line, report)
        else:
            report.found(FILE, line.number, f"an entry of the kind {kind!r}")
    report.checked["training calls"] += len(entries.calls)
    report.checked["borrows"] += len(entries.borrows)
    return entries


def check_order(entries: Entries, report: Report) -> None:
    """Sequence numbers, gradients before steps, nothing after an unknown call."""
    by_model: dict[str, list[Call]] = {}
    for call in entries.calls.values():
        if call.model is not None:
            by_model.setdefault(call.model, []).append(call)
    for model, calls in by_model.items():
        _check_model(model, calls, report)
    unknown: dict[int, Call] = {}
    for call in entries.calls.values():
        if call.attempt is None:
            continue
        given_up = unknown.get(call.attempt)
        if given_up is not None and call.kind != "unload_model":
            report.found(FILE, call.line, f"{call.key} follows {given_up.key}, which is unknown")
        if call.state == "unknown":
            unknown.setdefault(call.attempt, call)


def check_ends(entries: Entries, report: Report) -> None:
    """After the end of a run: every call has an outcome, every borrow was returned or is named."""
    for call in entries.calls.values():
        if call.open:
            report.found(FILE, call.line, f"{call.key} has no outcome: it ends as {call.state!r}")
    for key, (line, state) in entries.borrows.items():
        if state not in BORROW_ENDS:
            report.found(FILE, line, f"{key} was never returned: it ends as {state!r}")


def check_rests(entries: Entries, commits: Commits, *, ended: bool, report: Report) -> None:
    """Every commit rests on calls that are done. ``ended``: the run came to its end; a failure, a
    kill or a stop may come between an optimizer step and its commit."""
    done = [call for call in entries.calls.values() if call.state == "done"]
    made = {(call.attempt, call.kind, call.result) for call in done}
    for placed in commits.every:
        commit = placed.commit
        if (commit.attempt, "publish", commit.policy) not in made:
            what = f"policy {commit.policy} was not published by attempt {commit.attempt}"
            report.found(COMMITS, placed.line, what)
        if commit.state is not None and (commit.attempt, "save_state", commit.state) not in made:
            what = f"state {commit.state} was not saved by attempt {commit.attempt}"
            report.found(COMMITS, placed.line, what)
    attempts = {placed.commit.attempt: placed.line for placed in commits.every}
    stepped = Counter(call.attempt for call in done if call.kind == "optim_step")
    for attempt, line in attempts.items():
        trained = _trained(commits, attempt)
        most = trained if ended and attempt == max(attempts) else trained + 1
        if not trained <= stepped[attempt] <= most:
            what = f"attempt {attempt} committed {trained} policy steps, and {stepped[attempt]}"
            report.found(COMMITS, line, f"{what} optimizer steps are done")


def _trained(commits: Commits, attempt: int) -> int:
    """How many commits of an attempt, voided ones too, made a policy step."""
    own = [placed.commit for placed in commits.every if placed.commit.attempt == attempt]
    earlier = [
        placed.commit.policy_step
        for placed in commits.every
        if placed.commit.attempt < attempt and placed.commit.step == own[0].step - 1
    ]
    began = earlier[-1] if earlier else 0
    return sum(new != old for old, new in pairwise([began, *(c.policy_step for c in own)]))


def _follow_call(
    entries: Entries, key: str, state: str, line: Line, report: Report, promises: bool
) -> None:
    known = entries.calls.get(key)
    if known is None:
        allowed = _CALL_STEPS[None]
    elif known.state == "unknown":
        # A later attempt may learn what became of a call that the server had accepted.
        allowed = ("done", "refused", "unknown") if known.request else ()
    else:
        allowed = _CALL_STEPS.get(known.state, ())
        found = known.kind in _NAMED and line.record.get("found") is True
        if known.state == "intent" and (found or not promises):
            allowed = (*allowed, "done")
    if state not in allowed:
        before = "nothing" if known is None else repr(known.state)
        report.found(FILE, line.number, f"{key}: {state!r} follows {before}")
    if known is None:
        open_call = next((call for call in entries.calls.values() if call.open), None)
        if open_call is not None and state == "intent":
            what = f"{key} begins while {open_call.key} has no outcome"
            report.found(FILE, line.number, what)
        entries.calls[key] = known = _call(key, line, report)
    known.state = state
    known.result = _text(line.record.get("result"))
    if state == "accepted":
        known.request = _text(line.record.get("request"))
        if known.request is None:
            report.found(FILE, line.number, f"{key} was accepted without a request id")


def _call(key: str, line: Line, report: Report) -> Call:
    record = line.record
    attempt = _ATTEMPT.match(key)
    seq = record.get("seq")
    digest = record.get("digest")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        report.found(FILE, line.number, f"{key}: its digest is {digest!r}, not a SHA-256")
    return Call(
        key=key,
        line=line.number,
        kind=str(record.get("kind")),
        attempt=int(attempt[1]) if attempt else None,
        model=_text(record.get("model")),
        seq=seq if type(seq) is int else None,
        state="intent",
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _follow_borrow(entries: Entries, key: str, state: str, line: Line, report: Report) -> None:
    before = entries.borrows.get(key, (0, None))[1]
    if state not in _BORROW_STEPS.get(before, ()):
        report.found(FILE, line.number, f"{key}: {state!r} follows {before or 'nothing'!r}")
    entries.borrows[key] = (line.number, state)


def _check_model(model: str, calls: Sequence[Call], report: Report) -> None:
    accumulated = seq = 0
    attempt = calls[0].attempt
    for call in calls:
        if call.attempt != attempt:
            what = f"{call.key} uses the model {model} of attempt {attempt}"
            report.found(FILE, call.line, what)
        if call.seq is not None:
            if call.seq != seq + 1:
                what = f"{call.key}: sequence number {call.seq} follows {seq}"
                report.found(FILE, call.line, what)
            seq = call.seq
        if call.kind == "forward_backward":
            accumulated += call.state == "done"
        elif call.kind == "optim_step":
            if not accumulated:
                what = f"{call.key} steps without a forward_backward before it"
                report.found(FILE, call.line, what)
            accumulated = 0
