"""Which snapshots of an embedded server's store are needed, as the run folders tell it.

=============  =====================================================================================
`Need`         the snapshot
=============  =====================================================================================
``needed``     a commit that stands names it, a named policy (or its state, or the policy that its
               run began from), an evaluation, or a run that played it or is about to; or it is of a
               run that goes on, or may do so on another machine, that a script carries out, whose
               files are damaged, or whose folder is behind a symbolic link
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
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.policies import every_policy
from mtrl_cli.runs.processes import Standing, standing
from mtrl_cli.runs.registry import RunRecord, given_up, list_runs, read_run
from mtrl_cli.runs.shapes import check_state
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
    stored: Iterable[Stored],
    folders: Sequence[Path],
    giving_up: Collection[Path] = (),
    *,
    untold: bool = True,
) -> list[tuple[Stored, Need]]:
    """What each of ``stored`` is to the runs and the named policies in ``folders``.

    Args:
        giving_up: the folders of runs to be counted as given up.
        untold: what `players` may play counts as needed.

    Raises:
        MtrlError: the manifest of a named policy cannot be read, or a symbolic link leads nowhere,
            so what is needed is not known.
    """
    runs = [run for folder in folders for run in list_runs(folder)]
    linked = list(_linked(folders, {run.path.resolve() for run in runs}))
    giving = {path.resolve() for path in giving_up}
    keep = [run for run in (*runs, *linked) if not _is_given_up(run, giving)]
    held = {uri for run in keep for uri in _played(run)} | set(_named(folders))
    between: set[str] = set()
    dropped: set[str] = set()
    own: dict[tuple[str, str], int] = {}  # a run and a model of its → its latest attempt
    kept = set(map(run_id, linked))
    for run in runs:
        try:
            needed, passed = snapshots_of(run)
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
    if untold and any(map(_may_play_any, (*runs, *linked))):
        held |= between | dropped

    def need(one: Stored) -> Need:
        if one.uri in held or one.run in kept:
            return Need.needed
        if one.uri in between:
            return Need.between
        latest = own.get((one.run, one.model), 0)
        return Need.void if 0 < one.attempt <= latest else Need.unknown

    return [(one, need(one)) for one in stored]


def players(folders: Sequence[Path]) -> list[RunRecord]:
    """The living evaluations and rollouts whose files do not tell what they play."""
    runs = [run for folder in folders for run in list_runs(folder)]
    linked = _linked(folders, {run.path.resolve() for run in runs})
    return [run for run in (*runs, *linked) if _may_play_any(run)]


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


def snapshots_of(run: RunRecord) -> tuple[set[str], set[str]]:
    """The URIs that a run which is over needs, and those it has only passed through.

    Raises:
        MtrlError: what it needs is not known, or it is not over.
    """
    state = run.state
    if not state:
        raise MtrlError(f"{run.path / 'run.json'} cannot be read, so what it needs is not known")
    check_state(run.path, state)
    if run.alive:
        raise MtrlError(f"the process of {run.id} has not ended yet")
    if state.get("recorded") == SCRIPT:
        raise MtrlError(f"a script carries out {run.id}: what it needs is not known")
    unseen = run.status == "lost" and standing(state) is not Standing.GONE
    if unseen and "reaped" not in state:
        far = MtrlError(
            f"{run.id} may live on another machine ({state.get('host')}), where its process cannot "
            "be seen from here"
        )
        far.hint = f"settle it first: mtrl cancel {run.id}{runs_dir_option(run.path.parent)}"
        raise far
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
    told += [{"policy": uri} for uri in (run.alive and _plays(run)) or ()]
    for file in sorted((run.path / "evaluations").glob("*.json")):
        try:
            told.append(json.loads(file_at(file).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # then it names no policy
    for facts in told:
        if isinstance(facts, dict) and isinstance(facts.get("policy"), str):
            yield facts["policy"]


def _plays(run: RunRecord) -> list[str] | None:
    """What an evaluation or a rollout has told that it plays, as it began."""
    plays = run.state.get("plays")
    told = isinstance(plays, list) and all(isinstance(uri, str) for uri in plays)
    return plays if told else None


def _may_play_any(run: RunRecord) -> bool:
    return run.alive and run.state.get("kind") != "train" and _plays(run) is None


def _is_given_up(run: RunRecord, giving: Collection[Path]) -> bool:
    with contextlib.suppress(MtrlError):  # a mark that is damaged gives nothing up
        return given_up(run) is not None or run.path.resolve() in giving
    return False


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
