"""What must be true after every attempt, and after the last one, seen from outside.

The server's own count of what took effect is the witness; the run's files are only compared
with it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.ledger import LedgerEntry, read_ledger
from mtrl_cli.runs.verify.check import verify
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.telling.retelling import RunRetelling, retelling_of
from tests.exactly_once.play import STEPS, folder_in

KINDS = {
    "create_model": "create_model",
    "load_weights": "load_state",
    "forward_backward": "forward_backward",
    "optim_step": "optim_step",
    "save_weights_for_sampler": "publish",
    "save_weights": "save_state",
    "unload_model": "unload_model",
}
"""Endpoint → kind of call."""


def the_run(runs: Path) -> Path:
    run = folder_in(runs)
    assert run is not None, "no run folder"
    return run


def pid(run: Path) -> int:
    return int(json.loads((run / "run.json").read_text())["pid"])


def records(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def calls(run: Path) -> list[LedgerEntry]:
    return [entry for entry in read_ledger(run / "ledger.jsonl") if entry.entry == "call"]


def counted(run: Path, server: ScriptedPolicyServer, *, reaped: bool = False) -> Iterator[str]:
    """The server's count of applied calls equals what the ledger says, model by model.

    Done is exactly once, refused is never, anything else at most once; what the ledger does not
    know did not happen. The creations of models, which have no model yet, count as one.
    ``reaped``: a model may also have been unloaded by the settling of a dead attempt, which is
    recorded at the borrow.
    """
    applied: Counter[tuple[str, str | None, int | None]] = Counter(
        (KINDS[call.kind], call.model, call.seq) for call in server.applications()
    )
    told: Counter[tuple[str, str | None, int | None]] = Counter()
    sure: Counter[tuple[str, str | None, int | None]] = Counter()
    for entry in calls(run):
        facts = entry.facts
        key = (facts["kind"], facts["model"], facts["seq"])
        told[key] += entry.state != "refused"
        sure[key] += entry.state == "done"
    for key in applied.keys() | told.keys():
        kind, model, seq = key
        most = told[key] + (reaped and kind == "unload_model" and not told[key])
        if not sure[key] <= applied[key] <= most:
            what = f"{kind} {seq} of {model}: {applied[key]} applied"
            yield f"{what}, the ledger says {sure[key]} to {told[key]}"


def history(run: Path, server: ScriptedPolicyServer) -> Iterator[str]:
    """A finished run: all steps once, all groups once in order, each policy of its own step."""
    stands = read_history(run / "commits.jsonl").commits
    if [commit.step for commit in stands] != list(range(STEPS + 1)):
        yield f"steps {[commit.step for commit in stands]} stand"
    groups = [group for commit in stands for group in commit.groups]
    if groups != list(range(STEPS)):
        yield f"groups {groups} were consumed"
    for commit in stands:
        # The server's snapshot holds as many optimizer steps as the commit says made it.
        if (held := server.snapshots.get(commit.policy)) != commit.policy_step:
            yield f"the snapshot of step {commit.step} holds {held} optimizer steps"
        if commit.state is not None and server.states.get(commit.state) != commit.policy_step:
            yield f"the state of step {commit.step} holds {server.states.get(commit.state)}"
    if server.drifts:
        yield f"{len(server.drifts)} samples used other weights than they asked for"


def fresh(run: Path, server: ScriptedPolicyServer) -> Iterator[str]:
    """Every attempt trains a model of its own, and trains no gradients twice."""
    models: dict[str, str] = {}
    for entry in calls(run):
        attempt, model = entry.key.partition("/")[0], entry.facts["model"]
        if model is not None and models.setdefault(model, attempt) != attempt:
            yield f"{entry.key} uses the model of {models[model]}"
    for model, sent in Counter(
        call.model for call in server.applications() if call.kind == "optim_step"
    ).items():
        given = sum(c.model == model for c in server.applications() if c.kind == "forward_backward")
        if sent > given:
            yield f"{model} was stepped {sent} times on {given} batches"


def verified(run: Path) -> Iterator[str]:
    yield from (str(found) for found in verify(run, _retelling(run))[1].findings)


_known: dict[str, RunRetelling] = {}


def _retelling(run: Path) -> RunRetelling:
    """One for all: the runs here have the same tokenizer, template and task."""
    if "one" not in _known:
        _known["one"] = retelling_of(run)
    return _known["one"]
