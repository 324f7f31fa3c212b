"""``groups.jsonl``: every group that a standing commit consumed was admitted, and ended so.

Rules: an outcome follows an admission; within one attempt a group is admitted once and ends once;
every admission of a group is of the same task sample, the one that the task makes of its id; the
policy of a consumed group is the one of a commit of the same attempt, or the one that the attempt
began from, and was not older than ``max_policy_lag`` allows when it was trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mtrl_cli.runs.verify.commits import FILE as COMMITS
from mtrl_cli.runs.verify.commits import Commits
from mtrl_cli.runs.verify.declared import Declared
from mtrl_cli.runs.verify.episodes import Retelling
from mtrl_cli.runs.verify.lines import Line
from mtrl_cli.runs.verify.report import Report

FILE = "groups.jsonl"
_COUNTED = ("trained", "constant_reward")
"""Outcomes of groups that passed the rules of staleness."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admission and, once it is known, how it ended."""

    line: int
    attempt: int
    task: str
    policy: str
    policy_step: int
    outcome: str | None = None


@dataclass(slots=True)
class Admissions:
    """Group → its admissions, in order; the last one may be open."""

    of: dict[int, list[Admitted]] = field(default_factory=dict)

    def consumed(self, group: int, attempt: int) -> Admitted | None:
        """The admission that a commit of ``attempt`` consumed."""
        found = [admitted for admitted in self.of.get(group, ()) if admitted.attempt == attempt]
        return found[-1] if found else None


def read_admissions(lines: Sequence[Line], report: Report) -> Admissions:
    """Follow every group from admission to outcome."""
    admissions = Admissions()
    for line in lines:
        record = line.record
        try:
            group, state = int(record["group"]), str(record["state"])
            attempt = int(record.get("attempt", 1))
            admitted = _admitted(line, attempt) if state == "admitted" else None
        except (LookupError, TypeError, ValueError) as error:
            report.found(FILE, line.number, f"is no record of a group ({error!r})")
            continue
        known = admissions.of.setdefault(group, [])
        if admitted is not None:
            _admit(known, group, admitted, report)
        elif not known or known[-1].attempt != attempt or known[-1].outcome is not None:
            what = f"group {group} ends as {state!r} and was not admitted before it"
            report.found(FILE, line.number, what)
        else:
            known[-1] = replace(known[-1], outcome=state)
    report.checked["groups"] += len(admissions.of)
    return admissions


def check_admissions(
    admissions: Admissions,
    commits: Commits,
    begun: Mapping[int, tuple[str, int]],
    declared: Declared,
    report: Report,
) -> None:
    """What standing commits consumed, against what was admitted.

    ``begun``: attempt → the policy and the step that it went on from.
    """
    published: dict[tuple[int, str], int | None] = {
        (placed.commit.attempt, placed.commit.policy): placed.commit.policy_step
        for placed in commits.every
    }
    published |= {
        (attempt, policy): _policy_step(commits, attempt, step)
        for attempt, (policy, step) in begun.items()
    }
    for placed in commits.standing:
        before = commits.before(placed)
        for group, outcome in placed.commit.groups.items():
            admitted = admissions.consumed(group, placed.commit.attempt)
            where = f"group {group} was consumed as {outcome!r}"
            if admitted is None:
                what = f"{where}, but {FILE} has no admission of it"
                report.found(COMMITS, placed.line, what)
                continue
            if admitted.outcome != outcome:
                what = f"{where}, but {FILE}:{admitted.line} ended as {admitted.outcome!r}"
                report.found(COMMITS, placed.line, what)
            if published.get((admitted.attempt, admitted.policy)) != admitted.policy_step:
                what = f"group {group}: policy {admitted.policy} (step {admitted.policy_step})"
                report.found(FILE, admitted.line, f"{what} is none of attempt {admitted.attempt}")
            if before is None or declared.lag is None or outcome not in _COUNTED:
                continue
            lag = before.policy_step - admitted.policy_step
            if not 0 <= lag <= declared.lag:
                what = f"group {group} was trained {lag} steps after its policy"
                report.found(COMMITS, placed.line, f"{what}, max_policy_lag is {declared.lag}")


def check_tasks(
    admissions: Admissions, kind: str, seed: int, retelling: Retelling, report: Report
) -> None:
    """Every group is of the task sample that its id stands for."""
    for group, known in admissions.of.items():
        if known and known[0].task != (wanted := retelling.task(kind, seed, group)):
            what = f"group {group} is of task {known[0].task}, its id stands for {wanted}"
            report.found(FILE, known[0].line, what)


def open_admissions(admissions: Admissions, attempt: int, report: Report) -> None:
    """After the end of a run, every group that its last attempt admitted has an end."""
    for group, known in admissions.of.items():
        last = known[-1] if known else None
        if last is not None and last.attempt == attempt and last.outcome is None:
            report.found(FILE, last.line, f"group {group} was admitted and has no outcome")


def _admitted(line: Line, attempt: int) -> Admitted:
    record = line.record
    return Admitted(
        line.number,
        attempt,
        str(record["task"]),
        str(record["policy"]),
        int(record["policy_step"]),
    )


def _admit(known: list[Admitted], group: int, new: Admitted, report: Report) -> None:
    if known and known[-1].attempt >= new.attempt:
        report.found(FILE, new.line, f"group {group} is admitted twice by attempt {new.attempt}")
    if known and known[0].task != new.task:
        what = f"group {group} is of task {new.task}, and was of {known[0].task}"
        report.found(FILE, new.line, what)
    known.append(new)


def _policy_step(commits: Commits, attempt: int, step: int) -> int | None:
    """The policy step that an attempt found at the step where it began."""
    earlier = [
        placed.commit.policy_step
        for placed in commits.every
        if placed.commit.attempt < attempt and placed.commit.step == step
    ]
    return earlier[-1] if earlier else None
