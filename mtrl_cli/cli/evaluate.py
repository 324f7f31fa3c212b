"""``mtrl eval``: from its arguments to a dry run or a run."""

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from mtrl_cli.cli.experiment import Asked, display_plan, show_plan
from mtrl_cli.cli.failures import Teller
from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.schema import Experiment
from mtrl_cli.display.terminal import Screen
from mtrl_cli.runs.places import check_runs_dir
from mtrl_cli.training.contest import Contest, choose_contest
from mtrl_cli.training.events import RunFinished


def evaluate(
    asked: Asked, against: str | None, teller: Teller, *, dry_run: bool, as_json: bool
) -> int:
    """Evaluate the experiment's policy ``against`` another one; the exit code."""
    composed = compose(None, asked.overrides, asked.config_dirs)
    teller.redact = composed.redact
    if dry_run:
        experiment = resolve(composed, secrets=False)
        contest = choose_contest(experiment, against)
        return show_plan(asked, composed, as_json, _planned(experiment, contest))
    experiment = resolve(composed)
    refuse_invalid(experiment, composed, training=False)
    check_runs_dir(experiment.run.dir)
    contest = choose_contest(experiment, against)

    from mtrl_cli.cli.session import Session
    from mtrl_cli.training.evaluating import evaluate_policy

    session = Session(
        plan=display_plan(asked, experiment, 1 + contest.compares),
        teller=teller,
        play=None,
        stream=sys.stderr if as_json else sys.stdout,
    )
    work = partial(
        evaluate_policy, experiment, composed.yaml, contest=contest, redact=composed.redact
    )
    code = session.run(work)
    if as_json and session.finished is not None:
        Screen(sys.stdout).line(composed.redact(json.dumps(_object(session.finished), indent=2)))
    return code


def _planned(experiment: Experiment, contest: Contest) -> dict[str, Any]:
    """What a dry run says of it, beside what it says of every run."""
    games, policies = experiment.eval.games, 1 + contest.compares
    return {
        "groups": games,
        "group_size": 1,
        "games": games,
        "policies": policies,
        "trajectories": games * policies,
        "at_once": min(experiment.run.concurrency, games * policies),
        "temperature": 0.0 if experiment.eval.greedy else experiment.group.temperature,
        "policy": contest.uri(experiment),
        "against": contest.rival_uri(experiment),
    }


def _object(finished: RunFinished) -> dict[str, Any]:
    result = finished.evaluated
    return {
        "run_id": finished.run,
        "folder": finished.folder,
        "status": finished.status,
        "reason": finished.reason,
        "policy": finished.policy,
        "episodes": finished.episodes,
        "sampled_tokens": finished.sampled_tokens,
        "evaluation": None if result is None else asdict(result),
        "against": None if finished.before is None else asdict(finished.before),
        "quarantined": list(finished.quarantined),
    }
