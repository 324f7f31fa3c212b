"""Which snapshots of an embedded server's store are needed, as the run folders tell it.

=============  =====================================================================================
`Need`         the snapshot
=============  =====================================================================================
``needed``     a commit that stands names it, a named policy (or its state, or the policy that its
               run began from), an evaluation, or a run that played it; or it is of a run that goes
               on, or may do so on another machine, that a script carries out, whose files cannot
               be read, or whose folder is behind a symbolic link
``between``    of a finished run, a commit that stands names it; but it is neither the first policy
               nor the last one, nor the last training state, nor named, nor evaluated
``void``       of a run that is over, saved by an attempt of its own that committed, and no commit
               that stands names it, or the run was given up (`given_up`)
``unknown``    of no run in these folders, or of an attempt that is not in them: another folder's
               run, a copy say that was resumed there, may need it
=============  =====================================================================================

Of a run that was stopped or died nothing that a commit stands for is ever ``between``: it can be
resumed at each of its training states, and be compared at each step.

Nothing is known of runs, names and evaluations in other folders, but that each attempt saves from a
model of its own: what an attempt of a copy saves is never taken for this folder's.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.commits import published
from mtrl_cli.runs.files import file_at
from mtrl_cli.runs.folder import SCRIPT
from mtrl_cli.runs.policies import every_policy
from mtrl_cli.runs.processes import Standing, standing
from mtrl_cli.runs.registry import RunRecord, given_up, list_runs, read_run
from mtrl_cli.runs.takeover import whole_history

_OF_RUN = re.compile(r"tinker://[^/]+/(?:sampler_)?weights/([^/]+)/a(\d+)/step-\d+")
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
        return match[1] if match else self.model

    @property
    def attempt(self) -> int:
        """The attempt of that run, by its name; 0 where a run's name is not in it."""
        match = _OF_RUN.fullmatch(self.uri)
        return int(match[2]) if match else 0

    @property
    def model(self) -> str:
        """The id of the server's model that it was saved from."""
        return _model(self.uri)


def needs(
    stored: Iterable[Stored], folders: Sequence[Path], giving_up: Collection[Path] = ()
) -> list[tuple[Stored, Need]]:
    """What each of ``stored`` is to the runs and the named policies in ``folders``.

    Args:
        giving_up: the folders of runs to be counted as given up.

    Raises:
        MtrlError: the manifest of a named policy cannot be read, or a symbolic link leads nowhere,
            so what is needed is not known.
    """
    runs = [run for folder in folders for run in list_runs(folder)]
    linked = list(_linked(folders, {run.path.resolve() for run in runs}))
    keep = [run for run in (*runs, *linked) if run.path not in giving_up and not given_up(run)]
    held = {uri for run in keep for uri in _played(run)} | set(_named(folders))
    between: set[str] = set()
    dropped: set[str] = set()
    own: dict[tuple[str, str], int] = {}  # a run and a model of its → its latest attempt
    kept = set(map(run_id, linked))
    for run in runs:
        try:
            needed, passed = _of_run(run)
            if run not in keep:
                dropped |= needed | passed
                needed, passed = set(), set()
            models = set(map(_model, published(run.path / "commits.jsonl")))
        except (MtrlError, OSError):
            kept.add(run_id(run))
        else:
            held |= needed
            between |= passed
            for known in ((run_id(run), model) for model in models):
                own[known] = max(run.attempt, own.get(known, 0))
    if any(run.alive and run.state.get("kind") != "train" for run in (*runs, *linked)):
        held |= between | dropped  # it plays policies that its files may not name yet

    def need(one: Stored) -> Need:
        if one.uri in held or one.run in kept:
            return Need.needed
        if one.uri in between:
            return Need.between
        latest = own.get((one.run, one.model), 0)
        return Need.void if 0 < one.attempt <= latest else Need.unknown

    return [(one, need(one)) for one in stored]


def run_id(run: RunRecord) -> str:
    """The id that its snapshots carry, also where its folder has another name."""
    return str(run.state.get("id", run.id))


def _model(uri: str) -> str:
    return uri.removeprefix("tinker://").partition("/")[0]


def stores_of(runs: Iterable[RunRecord]) -> set[Path]:
    """The folders that the configurations of ``runs`` name as the embedded server's store."""
    found: set[Path] = set()
    for run in runs:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            match = _STORE.search(file_at(run.path / "config.yaml").read_text("utf-8"))
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
            told.append(json.loads(file_at(file).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # then it names no policy
    for facts in told:
        if isinstance(facts, dict) and isinstance(facts.get("policy"), str):
            yield facts["policy"]


def _linked(folders: Sequence[Path], seen: Collection[Path]) -> Iterator[RunRecord]:
    """The runs behind symbolic links, which no other command follows, but for those in ``seen``.

    Raises:
        MtrlError: a link leads nowhere.
    """
    for entry in (entry for folder in folders if folder.is_dir() for entry in folder.iterdir()):
        record = entry / "run.json"
        if entry.name == "latest" or not (entry.is_symlink() or record.is_symlink()):
            continue
        for link in (entry, record):
            if link.is_symlink() and not link.exists():
                raise MtrlError(
                    f"{link} is a symbolic link that leads nowhere: bring back what was there, or "
                    "remove it"
                )
        if record.is_file() and entry.resolve() not in seen:
            yield read_run(entry)


def _named(folders: Sequence[Path]) -> Iterator[str]:
    for policy in (policy for folder in folders for policy in every_policy(folder)):
        yield policy.uri
        yield from (uri for uri in (policy.initial, policy.manifest.get("state")) if uri)
