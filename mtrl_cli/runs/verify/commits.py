"""``commits.jsonl``: which steps stand, and whether they make one history.

Unlike `mtrl_cli.runs.commits`, which refuses a damaged file, this reading goes on after what is
wrong and says where it is. Rules, over the commits that stand: steps are 0, 1, 2, … without a
hole; attempts never decrease; only a later attempt rolls back, and only to a commit that has a
state or to the very beginning; a policy's URI stands for one policy; each step consumes
``group.per_step`` groups; no group is consumed twice, and none is left behind.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mtrl_cli.rollout.policy import snapshot_name
from mtrl_cli.runs.commits import Commit, commit_of
from mtrl_cli.runs.verify.declared import Declared
from mtrl_cli.runs.verify.lines import Line
from mtrl_cli.runs.verify.report import Report

FILE = "commits.jsonl"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Placed:
    """A commit and its line."""

    commit: Commit
    line: int


@dataclass(slots=True)
class Commits:
    """``standing`` in the order of steps; ``every`` also holds what was voided."""

    standing: list[Placed] = field(default_factory=list)
    every: list[Placed] = field(default_factory=list)
    rollbacks: int = 0

    @property
    def last(self) -> Commit | None:
        return self.standing[-1].commit if self.standing else None

    def before(self, placed: Placed) -> Commit | None:
        """The standing commit before a standing one."""
        index = self.standing.index(placed)
        return self.standing[index - 1].commit if index else None


def read_commits(lines: Sequence[Line], report: Report) -> Commits:
    """Fold the records; what cannot be folded is a finding, and the reading goes on after it."""
    commits = Commits()
    attempt = 1
    for line in lines:
        record = line.record
        try:
            now = int(record["attempt"])
            if record["kind"] == "rollback":
                _roll_back(commits, int(record["to"]), now, line.number, report)
            elif record["kind"] == "commit":
                _append(commits, Placed(commit_of(record), line.number), report)
            else:
                report.found(FILE, line.number, f"a record of the kind {record['kind']!r}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            told = error if isinstance(error, LookupError) else f"{type(error).__name__}: {error}"
            report.found(FILE, line.number, f"is no commit or rollback ({told})")
            continue
        if now < attempt:
            report.found(FILE, line.number, f"attempt {now} after attempt {attempt}")
        attempt = max(attempt, now)
    report.checked["commits"] += len(commits.standing)
    report.checked["rollbacks"] += commits.rollbacks
    return commits


def check_commits(
    commits: Commits, run: str, declared: Declared, *, ended: bool, report: Report
) -> None:
    """The rules over the commits that stand; ``ended``: the run finished all its steps."""
    for line, what in (
        *_policy_flaws(commits, run),
        *_group_flaws(commits, declared, ended=ended),
        *_digest_flaws(commits, declared),
    ):
        report.found(FILE, line, what)


def _append(commits: Commits, placed: Placed, report: Report) -> None:
    standing, commit = commits.standing, placed.commit
    commits.every.append(placed)
    last = standing[-1].commit.step if standing else -1
    if commit.step > last + 1:
        what = f"step {commit.step} follows step {last}" if standing else f"step {commit.step}"
        report.found(FILE, placed.line, f"{what}: a commit is missing before it")
    elif commit.step <= last:
        what = f"step {commit.step} follows step {last} without a rollback"
        report.found(FILE, placed.line, what)
        while standing and standing[-1].commit.step >= commit.step:
            standing.pop()
    standing.append(placed)


def _roll_back(commits: Commits, to: int, attempt: int, line: int, report: Report) -> None:
    standing = commits.standing
    commits.rollbacks += 1
    last = standing[-1].commit if standing else None
    if last is None or not -1 <= to < last.step:
        report.found(FILE, line, f"goes back to step {to}, after step {last and last.step}")
        return
    if attempt <= last.attempt:
        report.found(FILE, line, f"attempt {attempt} goes back behind its own commits")
    while standing and standing[-1].commit.step > to:
        standing.pop()
    if to >= 0 and not (standing and standing[-1].commit.state):
        report.found(FILE, line, f"goes back to step {to}, which has no training state")


def _policy_flaws(commits: Commits, run: str) -> Iterator[tuple[int, str]]:
    made: dict[str, int] = {}
    for placed in commits.every:
        commit = placed.commit
        if made.setdefault(commit.policy, commit.policy_step) != commit.policy_step:
            step = made[commit.policy]
            yield placed.line, f"policy {commit.policy} already stands for policy step {step}"
        name = commit.snapshot.get("name")
        wanted = snapshot_name(run, commit.attempt, commit.policy_step)
        if name != wanted:
            yield placed.line, f"its snapshot is called {name}, and should be {wanted}"
    for before, after in zip(commits.standing, commits.standing[1:], strict=False):
        old, new = before.commit, after.commit
        if new.policy_step not in (old.policy_step, old.policy_step + 1):
            yield after.line, f"policy step {new.policy_step} follows {old.policy_step}"
        elif new.attempt == old.attempt and (new.policy == old.policy) != (
            new.policy_step == old.policy_step
        ):
            what = "the policy changed" if new.policy != old.policy else "the policy is the same"
            yield after.line, f"{what}, its step went from {old.policy_step} to {new.policy_step}"


def _group_flaws(commits: Commits, declared: Declared, *, ended: bool) -> Iterator[tuple[int, str]]:
    consumed: dict[int, int] = {}
    per_step, lag = declared.per_step, declared.lag
    for placed in commits.standing:
        step, groups = placed.commit.step, placed.commit.groups
        wanted = 0 if step == 0 else per_step
        if wanted is not None and len(groups) != wanted:
            yield placed.line, f"step {step} consumes {len(groups)} groups, not {wanted}"
        for group in groups:
            if group in consumed:
                first = consumed[group]
                yield placed.line, f"group {group} was consumed by step {first} already"
            elif group < 0:
                yield placed.line, f"there is no group {group}"
            elif per_step is not None and lag is not None and group >= (step + lag) * per_step:
                yield placed.line, f"group {group} cannot have been admitted by step {step}"
            consumed.setdefault(group, step)
    last = commits.last
    if last is not None and per_step is not None and (lag == 0 or ended):
        missing = sorted(set(range(last.step * per_step)) - consumed.keys())
        if missing:
            named = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            yield commits.standing[-1].line, f"up to step {last.step} no step consumed: {named}"


def _digest_flaws(commits: Commits, declared: Declared) -> Iterator[tuple[int, str]]:
    for placed in commits.standing:
        digest = placed.commit.trajectories
        if digest is None:
            if declared.saves_trajectories and placed.commit.step > 0:
                yield placed.line, "it does not name its trajectories"
        elif _DIGEST.fullmatch(digest) is None:
            yield placed.line, f"trajectories is {digest!r}, not a SHA-256"
