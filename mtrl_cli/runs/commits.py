"""`commits.jsonl`: which steps are part of a run.

A record is one of two kinds:

- ``commit``: a step, made durable. Step 0 is the policy that training began from. It names the
  policy, the training state saved with it (or null), and every group that the step consumed
  with its outcome.
- ``rollback``: a later attempt went back to step ``to``. It voids every commit of a later step
  that stands before it; the records stay in the file.

What is left are the commits that stand: steps 0, 1, 2, … without a hole or a repetition. Over
them, each group of the task's order is consumed exactly once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.files import read_records


@dataclass(frozen=True, slots=True)
class Commit:
    """One step that is part of the run."""

    step: int
    attempt: int
    policy: str
    """URI of the policy after this step."""
    policy_step: int
    """The step that made that policy: earlier than ``step`` where nothing was trained."""
    state: str | None
    """URI of the training state saved at this step."""
    groups: Mapping[int, str]
    """Group id → outcome, of the groups that this step consumed."""
    snapshot: Mapping[str, Any]
    """What is known of the policy's snapshot beside its URI: ``name``, and what the server told."""
    trajectories: str | None = None
    """SHA-256 of the text of the step's trajectories; None where none were written."""

    def to_record(self) -> dict[str, Any]:
        return {
            "kind": "commit",
            "step": self.step,
            "attempt": self.attempt,
            "policy": self.policy,
            "policy_step": self.policy_step,
            "state": self.state,
            "snapshot": dict(self.snapshot),
            "trajectories": self.trajectories,
            "groups": {str(group): outcome for group, outcome in self.groups.items()},
        }


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a run that stand, in the order of their steps."""

    commits: tuple[Commit, ...] = ()

    @property
    def initial(self) -> Commit | None:
        """Step 0: the policy that training began from."""
        return self.commits[0] if self.commits else None

    @property
    def last(self) -> Commit | None:
        return self.commits[-1] if self.commits else None

    @property
    def last_with_state(self) -> Commit | None:
        """Where a resume can begin."""
        return next((commit for commit in reversed(self.commits) if commit.state), None)

    @property
    def consumed(self) -> Mapping[int, str]:
        """Every group that is behind us, with its outcome."""
        return {group: how for commit in self.commits for group, how in commit.groups.items()}

    def of(self, metrics: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those lines of ``metrics.jsonl`` that are of a commit here, and not of one that was
        voided."""
        stand = {(commit.step, commit.attempt) for commit in self.commits}
        return [line for line in metrics if (line.get("step"), line.get("attempt")) in stand]

    def at(self, step: int) -> Commit | None:
        return self.commits[step] if 0 <= step < len(self.commits) else None

    def up_to(self, step: int) -> "History":
        return History(tuple(commit for commit in self.commits if commit.step <= step))


def rollback(to: int, attempt: int) -> dict[str, Any]:
    """The record with which ``attempt`` goes back to step ``to``; -1 is before the first one."""
    return {"kind": "rollback", "to": to, "attempt": attempt}


def read_history(path: Path) -> History:
    """The commits of ``commits.jsonl`` that stand; none where the file is missing.

    Raises:
        MtrlError: the file is damaged, which a kill does not explain.
    """
    try:
        return standing(read_records(path))
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise MtrlError(f"{path} is damaged: {error or type(error).__name__}") from error


def published(path: Path) -> frozenset[str]:
    """The URI of every policy that was ever committed, also where a rollback voided it."""
    return frozenset(
        str(record["policy"]) for record in read_records(path) if record["kind"] == "commit"
    )


def standing(records: Iterable[Mapping[str, Any]]) -> History:
    """Fold the records of a run into the commits that stand.

    Raises:
        ValueError: a step is missing, repeated or out of order, or a record is of another kind.
    """
    commits: list[Commit] = []
    for record in records:
        match record["kind"]:
            case "commit":
                commit = commit_of(record)
                if commit.step != len(commits):
                    raise ValueError(f"step {commit.step} follows step {len(commits) - 1}")
                commits.append(commit)
            case "rollback":
                del commits[int(record["to"]) + 1 :]
            case kind:
                raise ValueError(f"a record of the kind {kind!r}")
    return History(tuple(commits))


def commit_of(record: Mapping[str, Any]) -> Commit:
    """Read one record of the kind ``commit``.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it is not one.
    """
    return Commit(
        step=int(record["step"]),
        attempt=int(record["attempt"]),
        policy=str(record["policy"]),
        policy_step=int(record["policy_step"]),
        state=record["state"],
        groups={int(group): str(outcome) for group, outcome in record["groups"].items()},
        snapshot=dict(record["snapshot"]),
        trajectories=record.get("trajectories"),
    )
