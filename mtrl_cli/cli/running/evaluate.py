"""``mtrl eval``: from its arguments to a dry run or a run."""

from functools import partial
from typing import TYPE_CHECKING, Any

from mtrl_cli.cli.failures import Teller
from mtrl_cli.cli.running.experiment import Asked, Shown, display_plan, planned, show_plan
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.rules.workload import of_games
from mtrl_cli.runs.places import check_runs_dir
from mtrl_cli.training.evaluation.contest import choose_contest

if TYPE_CHECKING:
    from mtrl_cli.cli.running.session import Session, Work


def evaluate(asked: Asked, against: str | None, teller: Teller, shown: Shown) -> int:
    """Evaluate the experiment's policy ``against`` another one; the exit code."""
    composed = compose(None, asked.overrides, asked.config_dirs)
    teller.concerns(composed)
    if shown.dry_run:
        return show_plan(asked, composed, shown.as_json, _facts(composed, against))
    session, work = prepared_evaluation(asked, composed, against, teller, shown)
    return session.run(work)


def prepared_evaluation(
    asked: Asked,
    composed: Composed,
    against: str | None,
    teller: Teller,
    shown: Shown,
    *,
    goes_on: bool = False,
) -> "tuple[Session, Work]":
    """An evaluation that is fit to be run, and what shows it."""
    experiment = resolve(composed)
    refuse_invalid(experiment, composed, training=False)
    check_runs_dir(experiment.run.dir)
    contest = choose_contest(experiment, against)

    from mtrl_cli.cli.running.session import Session
    from mtrl_cli.training.evaluating import evaluate_policy

    session = Session(
        plan=display_plan(asked, experiment, 1 + contest.compares),
        teller=teller,
        play=None,
        output=shown.output(goes_on=goes_on),
    )
    work = partial(
        evaluate_policy, experiment, composed.yaml, contest=contest, redact=composed.redact
    )
    return session, work


def sweep_evaluations(asked: Asked, against: str | None, teller: Teller, shown: Shown) -> int:
    """Evaluate every combination of values; the exit code."""
    from mtrl_cli.cli.running.multirun import sweep

    def prepare(
        asked: Asked, composed: Composed, teller: Teller, shown: Shown, *, goes_on: bool
    ) -> "tuple[Session, Work]":
        return prepared_evaluation(asked, composed, against, teller, shown, goes_on=goes_on)

    def plan(asked: Asked, composed: Composed) -> dict[str, Any]:
        return planned(asked, composed, _facts(composed, against))

    return sweep(asked, teller, shown, prepare, plan)


def _facts(composed: Composed, against: str | None) -> dict[str, Any]:
    """What a dry run says of it, beside what it says of every run."""
    from mtrl_cli.cli.running.dry_run import environment, sandboxes

    experiment = resolve(composed, secrets=False)
    contest = choose_contest(experiment, against)
    games, policies = experiment.eval.games, 1 + contest.compares
    work = of_games(experiment, games * policies)
    return {
        "groups": games,
        "group_size": 1,
        "games": games,
        "policies": policies,
        "trajectories": work.games,
        "at_once": work.games_at_once,
        "environment": environment(experiment, work),
        "sandboxes": sandboxes(experiment, work),
        "temperature": 0.0 if experiment.eval.greedy else experiment.group.temperature,
        "policy": contest.uri(experiment),
        "warning": next(contest.notices(experiment), None),
        "against": contest.rival_uri(experiment),
    }
