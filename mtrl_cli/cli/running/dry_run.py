"""What a run would do, told without doing any of it.

`plan` is the machine's form, `text` a person's. Both are made from an experiment in which every
secret is a mask.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtrl_cli.config.compose import Composed
from mtrl_cli.config.files.places import shown
from mtrl_cli.config.rules.assumed import assumed
from mtrl_cli.config.rules.capabilities import capabilities, declared
from mtrl_cli.config.rules.requirements import unmet
from mtrl_cli.config.rules.sandboxes import sandbox_need
from mtrl_cli.config.rules.workload import (
    FROM_THE_START,
    Begun,
    Workload,
    environments,
    of_groups,
    of_training,
)
from mtrl_cli.config.schema import EnvConfig, EnvKind, Experiment, ServerKind
from mtrl_cli.doctor.unseen import misleading_names

CLOSING = "Dry run complete. To start it, remove --dry-run from your command."

LABEL = 12
"""Columns of a fact's label."""


def plan(
    command: str,
    composed: Composed,
    experiment: Experiment,
    groups: int | None,
    begun: Begun = FROM_THE_START,
) -> dict[str, Any]:
    """The facts of a dry run. ``groups`` is what a rollout plays; None for training, of which
    ``begun`` is behind us."""
    group, budget, server = experiment.group, experiment.budget, experiment.server
    steps = experiment.train.steps if groups is None else None
    work = of_training(experiment, begun) if groups is None else of_groups(experiment, groups)
    per_step = group.per_step if groups is None else groups
    service = assumed(server)
    return {
        "command": command,
        "experiment": experiment.name,
        "file": shown(composed.file),
        "overrides": [override.shown for override in composed.overrides],
        "task": experiment.task.name,
        "steps": steps,
        "steps_left": None if steps is None else max(steps - begun.step, 0),
        "groups_per_step" if groups is None else "groups": per_step,
        "group_size": group.size,
        "trajectories": work.trained,
        "at_once": work.trained_at_once,
        "budget": {
            "turn_tokens": budget.turn_tokens,
            "trajectory_tokens": budget.trajectory_tokens,
            "max_turns": budget.max_turns,
            "deadline": budget.deadline,
        },
        "server": {
            "kind": server.kind.value,
            "address": server.base_url,
            "base_model": server.base_model,
            "snapshots": service.snapshots.value,
            "dedupes": service.dedupes,
            "loss_reduction": service.loss_reduction and service.loss_reduction.value,
            "capabilities": [asdict(one) for one in capabilities(experiment)],
        },
        "environment": environment(experiment, work),
        "sandboxes": sandboxes(experiment, work),
        "policy": experiment.policy,
        "evaluation": _evaluation(experiment, work, begun) if groups is None else None,
        "secrets": [
            {"key": one.key, "from": one.variable, "set": one.present, "required": one.required}
            for one in composed.secrets
        ],
        "runs": experiment.run.dir,
        "runs_exist": Path(experiment.run.dir).is_dir(),
        "problems": _problems(experiment, training=steps is not None),
    }


def _problems(experiment: Experiment, *, training: bool) -> list[str]:
    """What the run would be refused for, as far as it can be told without contacting anybody."""
    found = misleading_names(experiment)
    return [*found, *unmet(declared(experiment), experiment)] if training else found


def sandboxes(experiment: Experiment, work: Workload) -> dict[str, Any] | None:
    """What so much to play asks of the E2B account; None where it is played elsewhere."""
    if experiment.env.kind is not EnvKind.e2b:
        return None
    return asdict(sandbox_need(experiment, work))


def environment(experiment: Experiment, work: Workload) -> dict[str, Any]:
    """Where environments come from, and how many would be made to play so much."""
    in_all = environments(experiment, work.episodes)
    return {
        "kind": experiment.env.kind.value,
        "source": _source(experiment.env),
        "in_all": in_all,
        "to_compare_seeds": in_all - work.episodes,
        "at_once": work.at_once,
    }


def text(facts: Mapping[str, Any]) -> list[str]:
    """The lines of a dry run."""
    lines = [f"{label:<{LABEL}}{line}" for label, line in _facts(facts)]
    return lines if lacking(facts) or facts["problems"] else [*lines, "", CLOSING]


def lacking(facts: Mapping[str, Any]) -> bool:
    """Whether a secret that the run needs is not set."""
    return any(secret["required"] and not secret["set"] for secret in facts["secrets"])


def _source(env: EnvConfig) -> str | None:
    """Where the environment comes from."""
    if env.kind is EnvKind.openenv_remote:
        return env.base_url
    served = env.kind is EnvKind.openenv_served and env.app is not None
    return env.app if served else env.entrypoint


def _evaluation(experiment: Experiment, work: Workload, begun: Begun) -> dict[str, Any]:
    evaluation = experiment.eval
    during = evaluation.games_during if evaluation.games and evaluation.every else 0
    return {
        "games": evaluation.games,
        "before": not begun.evaluated,
        "every": evaluation.every,
        "games_during": during,
        "at_once": work.games_at_once,
    }


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "experiment", f"{facts['experiment']} ({facts['file']})"
    if facts["overrides"]:
        yield "changed", " ".join(facts["overrides"])
    yield "task", facts["task"]
    yield facts["command"], _counts(facts)
    budget = facts["budget"]
    yield (
        "budget",
        (
            f"{budget['turn_tokens']:,} tokens a turn,"
            f" {budget['trajectory_tokens']:,} a trajectory, {budget['max_turns']} turns,"
            f" {budget['deadline']:g} s"
        ),
    )
    yield "server", _server(facts["server"])
    yield "", _assumed(facts["server"])
    for one in facts["server"]["capabilities"]:
        if one["changes"] is not None:
            yield "so", f"{one['changes']} ({_because(one)})"
    yield "environment", _environment(facts["environment"])
    if facts["sandboxes"]:
        yield "sandboxes", _need(facts["sandboxes"])
    if facts["policy"]:
        yield "policy", facts["policy"]
    if facts.get("warning"):
        yield "WARNING", facts["warning"]
    if facts.get("against"):
        yield "against", facts["against"]
    if facts["evaluation"]:
        yield "evaluation", _games(facts["evaluation"])
    for secret in facts["secrets"]:
        yield "secret", _secret(secret)
    if resumed := facts.get("resumes"):
        yield "resumes", _resumed(resumed)
    else:
        there = "not created" if facts["runs_exist"] else "not there yet, and not created"
        yield "run folder", f"in {facts['runs']}/ ({there})"


def _resumed(run: Mapping[str, Any]) -> str:
    begins = "anew: no training state was saved" if run["step"] < 0 else f"after step {run['step']}"
    return f"{run['folder']} as attempt {run['attempt']}, going on {begins}"


def _counts(facts: Mapping[str, Any]) -> str:
    if (games := facts.get("games")) is not None:
        policies = "2 policies" if facts["policies"] > 1 else "1 policy"
        return (
            f"{games:,} games × {policies} = {facts['trajectories']:,} episodes,"
            f" {facts['at_once']:,} at once, temperature {facts['temperature']:g}"
        )
    groups = facts.get("groups_per_step", facts.get("groups"))
    factors = [f"{groups} groups", f"{facts['group_size']} trajectories"]
    if (left := facts["steps_left"]) is not None:
        of = f" of {facts['steps']:,}" if left != facts["steps"] else ""
        factors.insert(0, f"{left:,}{of} steps")
    product = " × ".join(factors)
    return f"{product} = {facts['trajectories']:,} episodes, {facts['at_once']:,} at once"


def _server(server: Mapping[str, Any]) -> str:
    if server["kind"] == ServerKind.local.value and server["address"] is None:
        return f"local: {server['base_model']}, started for the run (not started)"
    return f"{server['kind']}: {server['base_model']} at {server['address']} (not contacted)"


def _assumed(server: Mapping[str, Any]) -> str:
    executes = "once" if server["dedupes"] else "twice"
    kept = f"snapshots: {server['snapshots']}"
    reduction = f"loss reduction: {server['loss_reduction'] or 'not known'}"
    return f"{kept}; a training call sent twice is executed {executes}; {reduction}"


def _because(one: Mapping[str, Any]) -> str:
    value = "not known" if one["value"] is None else str(one["value"]).lower()
    return f"{one['name']}: {value}, {one['source']}"


_MADE = {
    EnvKind.openenv.value: "instances in this process",
    EnvKind.openenv_remote.value: "sessions at the server (not contacted)",
    EnvKind.openenv_served.value: "sessions of one server that is started for the run",
}


def _environment(facts: Mapping[str, Any]) -> str:
    told = f"{facts['kind']}: {facts['source']}"
    made = _MADE.get(facts["kind"])
    if made is None:
        return told
    compared = facts["to_compare_seeds"]
    each = "one for each episode" + (f", {compared} to compare seeds" if compared else "")
    return f"{told}; {facts['in_all']:,} {made}, at most {facts['at_once']:,} at once ({each})"


def _games(evaluation: Mapping[str, Any]) -> str:
    if not evaluation["games"]:
        return "none"
    during = f", {evaluation['games_during']:,} every {evaluation['every']:,} steps"
    when = "before and after"
    if not evaluation["before"]:
        when = "after, none before: those are recorded, or the policy that it began from is gone"
    during = during if evaluation["every"] else ""
    return f"{evaluation['games']:,} games {when}{during}, {evaluation['at_once']:,} at once"


def _need(need: Mapping[str, Any]) -> str:
    minutes, seconds = divmod(math.ceil(need["seconds"]), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{need['sandboxes']:,} in all, {need['at_once']:,} at once, {need['per_second']:g} created"
        f" a second: at least {hours}:{minutes:02}:{seconds:02}"
    )


def _secret(secret: Mapping[str, Any]) -> str:
    if secret["from"] is None:
        return f"{secret['key']}: set, as a literal (better: '{secret['key']}=${{oc.env:NAME}}')"
    state = "set" if secret["set"] else "NOT SET" if secret["required"] else "not set (optional)"
    return f"{secret['key']} from {secret['from']}: {state}"
