"""`publish`: a name for a policy that a run has committed, and its weights as files.

    commit that stands → does the server hold its snapshot? → (weights to a folder) → manifest

Nothing of the run is changed, and a run that goes on is not disturbed: commits only ever join,
and a resume that voids one leaves the snapshot where it is. On a server whose snapshots do not
last a name would come to stand for other weights, so none is given.
"""

import hashlib
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtrl_cli import __version__
from mtrl_cli.assembly import snapshot_store
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.rules.assumed import assumed
from mtrl_cli.config.schema import Experiment, Snapshots
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.commits import Commit, History, read_history
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.files import read_records, redacted, write_document
from mtrl_cli.runs.policies import (
    FORMAT,
    NamedPolicy,
    check_name,
    policy_names,
    read_policy,
    refuse_taken,
    write_policy,
)
from mtrl_cli.runs.registry import RunRecord, given_up, read_run
from mtrl_cli.servers.interface import CannotList, SnapshotFacts, SnapshotStore
from mtrl_cli.training.policies.choose import commit_at, server_facts, trained_run

_PARITY = ("parity", "audit")
"""How the names of metrics begin that compare the sampler's logprobs with the trainer's."""


@dataclass(frozen=True, slots=True)
class Published:
    policy: NamedPolicy
    export: Path | None
    """Where the weights were put."""

    @property
    def verified(self) -> bool:
        """The server's own list held the snapshot."""
        return bool(self.policy.manifest["snapshot"]["verified"])


async def publish(
    runs: Path, asked: str, *, step: int | None, name: str | None, export: Path | None
) -> Published:
    """Name a run's policy at ``step`` (its last commit where None); with ``export`` also
    download its weights.

    Raises:
        NoSuchRun: no run goes by ``asked``.
        UsageError: there is no such commit, the name is not one or is taken, or ``export`` is
            not an empty folder.
        MtrlError: the server does not hold the snapshot, or cannot be reached.
    """
    if export is not None:
        _require_empty(export)
    run = trained_run(runs, asked)
    history = read_history(run.path / "commits.jsonl")
    commit = commit_at(history, step, run.id)
    composed = compose(str(run.path / "config.yaml"))
    experiment = resolve(composed)
    name = check_name(name or _default_name(experiment.name, run.id, commit.step))
    refuse_taken(runs, name)
    _refuse_passing(experiment, run, commit)

    config_yaml = (run.path / "config.yaml").read_text(encoding="utf-8")
    # From the look into the store to the name `mtrl store` removes nothing; of a run that lives
    # it never does, and whoever would end that one must not wait.
    lock = nullcontext() if run.alive else locked(run.path)
    with lock:
        async with snapshot_store(experiment.server) as store:
            facts = await _listed(store, commit.policy, given_up(read_run(run.path)))
            manifest = _manifest(name, run, history.up_to(commit.step), experiment, composed, facts)
            if export is not None:
                await _export(store, manifest, export)
        return Published(write_policy(runs, name, manifest, config_yaml), export)


async def export_named(runs: Path, name: str, export: Path) -> Published:
    """Download the weights of a policy that has a name already.

    Raises:
        UsageError: ``export`` is not an empty folder.
        MtrlError: the server does not hand the weights out.
    """
    policy = read_policy(runs, name)
    _require_empty(export)
    server = resolve(compose(str(policy.path / "config.yaml"))).server
    async with snapshot_store(server) as store:
        await _export(store, policy.manifest, export)
    return Published(policy, export)


def is_named(runs: Path, asked: str) -> bool:
    return asked in policy_names(runs)


# --- what is refused ----------------------------------------------------------------------------


def _refuse_passing(experiment: Experiment, run: RunRecord, commit: Commit) -> None:
    """A name must go on standing for the same weights."""
    snapshots = assumed(experiment.server).snapshots
    if snapshots is Snapshots.immutable:
        return
    why = {
        Snapshots.live: "samples a snapshot with the weights in training",
        Snapshots.newest_only: "keeps only the newest snapshot",
    }[snapshots]
    saved = f"; its training state is {commit.state}" if commit.state else ""
    raise UsageError(
        f"step {commit.step} of {run.id} cannot be named: its server {why} (server.snapshots "
        f"{snapshots.value}), so the name would not go on standing for these weights{saved}; if "
        "the server does keep them, set server.snapshots: immutable in the run's config.yaml"
    )


def _require_empty(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"--export: {folder} is not a folder; write one that is empty or new")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--export: {folder} is not empty; write a folder that is empty or new")


# --- the server ---------------------------------------------------------------------------------


async def _listed(store: SnapshotStore | None, uri: str, gone: str | None) -> SnapshotFacts | None:
    """What the server says of the snapshot; None where it has no words for it. ``gone`` is why it
    may not hold it, where that is known."""
    if store is None:
        return None
    try:
        facts = await store.snapshot(uri)
    except CannotList:
        return None
    if facts is None:
        why = gone or "it was deleted, or the store is another"
        raise MtrlError(f"the server does not hold {uri}: {why}")
    return facts


async def _export(store: SnapshotStore | None, manifest: Mapping[str, Any], export: Path) -> None:
    """Fill a folder beside ``export`` and rename it there: it comes whole or not at all."""
    if store is None:
        raise MtrlError(f"--export: a {manifest['server']['kind']} server hands no weights out")
    with _made_whole(export) as beside:
        await store.download(str(manifest["uri"]), beside)
        write_document(beside / "manifest.json", json.dumps(manifest, indent=2) + "\n")


@contextmanager
def _made_whole(export: Path) -> Iterator[Path]:
    """A folder beside ``export``, which takes its place in the end; on an error nothing is left."""
    parent = export.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".mtrl-export-", dir=parent))
    try:
        yield beside
        try:
            beside.rename(export)  # fails on whatever is there, but for an empty folder
        except OSError as error:
            raise UsageError(f"--export: {export} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


# --- the manifest -------------------------------------------------------------------------------


def _manifest(
    name: str,
    run: RunRecord,
    history: History,
    experiment: Experiment,
    composed: Composed,
    facts: SnapshotFacts | None,
) -> dict[str, Any]:
    """What there is to say of the policy of ``history``'s last commit."""
    commit, initial = history.last, history.initial
    assert commit is not None
    steps = _metrics(run.path / "metrics.jsonl", history)
    told = asdict(facts) if facts is not None else {}
    made = {
        "format": FORMAT,
        "name": name,
        "time": round(time.time(), 3),
        "mtrl": __version__,
        "run": run.id,
        "attempt": commit.attempt,
        "step": commit.step,
        "policy_step": commit.policy_step,
        "uri": commit.policy,
        "initial": initial.policy if initial is not None else None,
        "state": commit.state,
        "snapshot": {
            "name": commit.snapshot.get("name"),
            "verified": facts is not None,
            **{key: told.get(key) for key in ("time", "size", "digest")},
        },
        "server": server_facts(experiment.server),
        "experiment": {
            "name": experiment.name,
            "task": experiment.task.entrypoint,
            "config_sha256": hashlib.sha256((run.path / "config.yaml").read_bytes()).hexdigest(),
        },
        "data": {
            "groups": dict(Counter(history.consumed.values())),
            "episodes": _total(steps, "episodes"),
            "sampled_tokens": _total(steps, "tokens_sampled"),
            "steps_without_metrics": commit.step - len(steps),
        },
        "evaluation": run.state.get("evaluation", {}),
        "parity": _parity(steps),
    }
    cleaned: dict[str, Any] = redacted(made, composed.redact)
    return cleaned


def _metrics(path: Path, history: History) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl that belong to the commits, in their order."""
    lines = {
        (line["step"], line.get("attempt", 1)): line
        for line in read_records(path)
        if "reward" in line or "episodes" in line
    }
    keys = ((commit.step, commit.attempt) for commit in history.commits)
    return [lines[key] for key in keys if key in lines]


def _total(steps: list[Mapping[str, Any]], figure: str) -> int:
    return int(sum(line.get(figure, 0) for line in steps))


def _parity(steps: list[Mapping[str, Any]]) -> dict[str, Any]:
    """How far the sampler's logprobs were from the trainer's: in the last step that was measured,
    and each figure at its largest."""
    measured = [
        {name: value for name, value in line.items() if name.startswith(_PARITY)} for line in steps
    ]
    measured = [figures for figures in measured if figures]
    if not measured:
        return {"last": None, "worst": None}
    names = sorted({name for figures in measured for name in figures})
    worst = {name: max(f[name] for f in measured if name in f) for name in names}
    return {"last": measured[-1], "worst": worst}


def _default_name(experiment: str, run: str, step: int) -> str:
    """Such as ``blackjack-a7aa-step-000012``."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", experiment).strip("-") or "policy"
    plain = plain if plain[0].isalpha() else f"policy-{plain}"
    return f"{plain[:80]}-{run.rpartition('-')[2]}-step-{step:06d}"
