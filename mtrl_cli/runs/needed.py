"""Which snapshots of an embedded server's store are needed, as the run folders tell it.

=============  =====================================================================================
`Need`         the snapshot
=============  =====================================================================================
``needed``     a commit that stands names it, a named policy (or its state, or the policy that its
               run began from), an evaluation, or a run that played it; or it is of a run that goes
               on, or may do so on another machine, that a script carries out, or whose files
               cannot be read
``between``    of a finished run, a commit that stands names it; but it is neither the first policy
               nor the last one, nor the last training state, nor named, nor evaluated
``void``       of a run that is over, and no commit that stands names it
``unknown``    of no run in these folders: another folder's run may need it
=============  =====================================================================================

Of a run that was stopped or died nothing that a commit stands for is ever ``between``: it can be
resumed at each of its training states, and be compared at each step.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.folder import SCRIPT
from mtrl_cli.runs.policies import list_policies
from mtrl_cli.runs.processes import Standing, standing
from mtrl_cli.runs.registry import RunRecord, list_runs
from mtrl_cli.runs.takeover import whole_history

_OF_RUN = re.compile(r"tinker://[^/]+/(?:sampler_)?weights/([^/]+)/a\d+/step-\d+")
_STORE = re.compile(r"^server:\n(?:  .*\n)*?  store: (?!null$)([^\s'\"$]+)$", re.MULTILINE)
"""As a run's config.yaml has it, where it is a plain path."""


class Need(StrEnum):
    needed = "needed"
    between = "between"
    void = "void"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class Stored:
    """A snapshot, or a training state, that the store holds."""

    uri: str
    size: int
    """Bytes."""
    time: float
    """When it was saved, in Unix seconds."""

    @property
    def run(self) -> str:
        """The id of the run that saved it, by its name; else that of the model."""
        match = _OF_RUN.fullmatch(self.uri)
        return match[1] if match else self.uri.split("/")[2]


def needs(stored: Iterable[Stored], folders: Sequence[Path]) -> list[tuple[Stored, Need]]:
    """What each of ``stored`` is to the runs and the named policies in ``folders``.

    Raises:
        MtrlError: the manifest of a named policy cannot be read, so what it needs is not known.
    """
    runs = [run for folder in folders for run in list_runs(folder)]
    held = {uri for run in runs for uri in _played(run)} | set(_named(folders))
    between: set[str] = set()
    over: set[str] = set()
    kept: set[str] = set()
    for run in runs:
        try:
            needed, passed = _of_run(run)
        except (MtrlError, OSError):
            kept.add(run_id(run))
        else:
            held |= needed
            between |= passed
            over.add(run_id(run))
    if any(run.alive and run.state.get("kind") != "train" for run in runs):
        held |= between  # it plays policies that its files may not name yet

    def need(one: Stored) -> Need:
        if one.uri in held or one.run in kept:
            return Need.needed
        if one.uri in between:
            return Need.between
        return Need.void if one.run in over else Need.unknown

    return [(one, need(one)) for one in stored]


def run_id(run: RunRecord) -> str:
    """The id that its snapshots carry, also where its folder has another name."""
    return str(run.state.get("id", run.id))


def stores_of(runs: Iterable[RunRecord]) -> set[Path]:
    """The folders that the configurations of ``runs`` name as the embedded server's store."""
    found: set[Path] = set()
    for run in runs:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            match = _STORE.search((run.path / "config.yaml").read_text(encoding="utf-8"))
            if match:
                found.add(Path(match[1]).expanduser().resolve())
    return found


def _of_run(run: RunRecord) -> tuple[set[str], set[str]]:
    """The URIs that a run which is over needs, and those it has only passed through.

    Raises:
        MtrlError: what it needs is not known, or it is not over.
    """
    state = run.state
    unseen = run.status == "lost" and standing(state) is not Standing.GONE
    if run.alive or not state or state.get("recorded") == SCRIPT:
        raise MtrlError("all of it is needed")
    if unseen and "reaped" not in state:
        raise MtrlError("it may live on another machine, and what it publishes is committed later")
    history = whole_history(run)
    stand = {uri for made in history.commits for uri in (made.policy, made.state) if uri}
    if run.status != "finished":
        return stand, set()
    last, resumed = history.last, history.last_with_state
    ends = {made.policy for made in (history.initial, last, resumed) if made}
    ends |= {resumed.state} if resumed and resumed.state else set()
    return ends, stand - ends


def _played(run: RunRecord) -> Iterator[str]:
    """The policies that a run has played or evaluated, as its files tell."""
    evaluation = run.state.get("evaluation")
    told = [run.state, *(evaluation.values() if isinstance(evaluation, dict) else ())]
    for file in sorted((run.path / "evaluations").glob("*.json")):
        try:
            told.append(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # then it names no policy
    for facts in told:
        if isinstance(facts, dict) and isinstance(facts.get("policy"), str):
            yield facts["policy"]


def _named(folders: Sequence[Path]) -> Iterator[str]:
    for policy in (policy for folder in folders for policy in list_policies(folder)):
        yield policy.uri
        yield from (uri for uri in (policy.initial, policy.manifest.get("state")) if uri)
