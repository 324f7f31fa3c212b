"""``mtrl publish``: give a run's policy a name that stays, and list the names."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.cli.failures import interruptible
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless, reward, short_age, table
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.policies import NamedPolicy, list_policies

INTERRUPTED = 130

_HEADS = ("name", "run", "step", "age", "evaluation", "verified", "policy")


def publish_run(
    asked: str | None,
    *,
    step: int | None,
    name: str | None,
    export: Path | None,
    runs: Path,
    as_json: bool,
) -> int:
    """Publish, or export what is published; the exit code."""
    from mtrl_cli.training.policies.publishing import export_named, is_named, publish

    if asked is None:
        raise UsageError("which run? write mtrl publish RUN (or last); mtrl publish --list lists")
    if export is not None and step is None and name is None and is_named(runs, asked):
        work = export_named(runs, asked, export)
    else:
        work = publish(runs, asked, step=step, name=name, export=export)
    try:
        with interruptible():
            published = asyncio.run(work)
    except KeyboardInterrupt:
        Screen(sys.stderr).line("interrupted: nothing was published")
        return INTERRUPTED
    policy = published.policy
    told = Screen(sys.stderr if as_json else sys.stdout)
    for line in _said(policy, published.verified, published.export):
        told.line(harmless(line))
    if as_json:
        facts = {**policy.manifest, "folder": str(policy.path)}
        if published.export is not None:
            facts["export"] = str(published.export)
        Screen(sys.stdout).line(json.dumps(facts, indent=2))
    return 0


def show_policies(runs: Path, *, as_json: bool) -> int:
    """Print the named policies, the newest first; the exit code."""
    found = list_policies(runs)
    if as_json:
        facts = [{**policy.manifest, "folder": str(policy.path)} for policy in found]
        Screen(sys.stdout).line(json.dumps(facts, indent=2))
    elif not found:
        Screen(sys.stderr).line(harmless(f"no named policies in {runs} (see --runs-dir)"))
    else:
        now = time.time()
        screen = Screen(sys.stdout)
        for line in table([_HEADS, *(_row(policy, now) for policy in found)]):
            screen.line(line)
    return 0


def _said(policy: NamedPolicy, verified: bool, export: Path | None) -> Iterator[str]:
    manifest = policy.manifest
    yield f"{policy.name} is step {manifest['step']} of {manifest['run']}: {policy.uri}"
    if not verified:
        yield "not verified: this server has no list of its snapshots"
    if export is not None:
        yield f"weights in {export}"
    conf = f"conf={policy.path / 'config.yaml'}"
    yield f"play it: mtrl rollout {conf} policy={policy.name}"


def _row(policy: NamedPolicy, now: float) -> tuple[str, ...]:
    manifest = policy.manifest
    return (
        policy.name,
        harmless(str(manifest.get("run", "-"))),
        str(manifest.get("step", "-")),
        short_age(max(now - float(manifest["time"]), 0.0)),
        _evaluation(manifest),
        "yes" if manifest.get("snapshot", {}).get("verified") else "no",
        harmless(policy.uri),
    )


def _evaluation(manifest: Mapping[str, Any]) -> str:
    """The mean reward of this very policy, where its run has evaluated it."""
    evaluations = manifest.get("evaluation")
    if not isinstance(evaluations, Mapping):
        return "-"
    own = (
        figures.get("mean")
        for figures in evaluations.values()
        if isinstance(figures, Mapping) and figures.get("policy") == manifest["uri"]
    )
    return reward(next(own, None))
