"""``mtrl train --resume RUN``: go on with a run that was stopped, failed or died."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mtrl_cli.cli.failures import Teller
from mtrl_cli.cli.running.experiment import Asked, Shown, display_plan, show_plan
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.differences import Difference, differences, evaluates_anew
from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.overrides import split_conf
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.rules.assumed import assumed
from mtrl_cli.config.rules.workload import Begun
from mtrl_cli.config.schema import Experiment, Snapshots
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless, run_tail
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.commits import History
from mtrl_cli.runs.ledger import unstepped
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.reap import read_entries
from mtrl_cli.runs.registry import RunRecord, find_trained, run_at
from mtrl_cli.runs.takeover import ANEW, NewConfig, beginning, refuse_live, whole_history


@dataclass(frozen=True)
class Resume:
    """What the user asked for. ``force`` lets what is safe to change be changed."""

    run: str
    """RUN, or RUN@STEP: an earlier training state. ``last`` is the newest run that trains."""
    runs: Path
    asked: Asked
    force: bool


def resume_run(resume: Resume, teller: Teller, shown: Shown) -> int:
    """Resume the run that ``resume`` names; the exit code.

    Raises:
        NoSuchRun: there is none, or several.
        StillRunning: it lives.
        UsageError: it cannot be resumed, or not with these settings.
    """
    name, at = run_at(resume.run, f"--resume {resume.run}")
    run = refuse_live(find_trained(resume.runs, name).path)
    _refuse_kind(run)
    before, now = _configurations(run, resume.asked)
    teller.concerns(now)
    history = whole_history(run)
    stands = beginning(history, at)
    committed = history.last.step if history.last else 0
    changed = _accepted(run, differences(before, now, committed), resume.force)
    experiment = resolve(now, secrets=not shown.dry_run)
    refuse_invalid(experiment, now, training=True)
    if not resume.force:
        _refuse_leaks(run, experiment)
    if at is None and run.status == "finished" and experiment.train.steps <= committed:
        _say_finished(run, committed, resume.runs)
        return 0
    if shown.dry_run:
        facts = _facts(run, stands)
        more = {"resumes": facts, "runs": facts["folder"]}
        begun = _begun(run, stands, experiment, anew=evaluates_anew(changed))
        return show_plan(resume.asked, now, shown.as_json, more, begun)
    config = None
    if now.yaml != before.yaml:
        config = NewConfig(now.yaml, evaluates_anew(changed))

    from mtrl_cli.cli.running.session import Session
    from mtrl_cli.training import run as training

    session = Session(
        plan=display_plan(resume.asked, experiment),
        teller=teller,
        play=None,
        output=shown.output(),
    )
    work = partial(training.resume, run.path, experiment, config, at=at, redact=now.redact)
    return session.run(work)


def _refuse_kind(run: RunRecord) -> None:
    if run.status == "unreadable":
        raise MtrlError(f"{run.path / 'run.json'} cannot be read: nothing is known of the run")
    if (kind := run.state.get("kind")) != "train":
        raise UsageError(
            f"{run.id} is a {kind} run, and only training can be resumed; start it again"
        )


def _configurations(run: RunRecord, asked: Asked) -> tuple[Composed, Composed]:
    """The run's own configuration, and the one that it is to go on with."""
    own = str(run.path / "config.yaml")
    conf, overrides = split_conf(asked.overrides)
    before = compose(own)
    return before, compose(conf or own, overrides, asked.config_dirs)


def _facts(run: RunRecord, stands: History) -> dict[str, Any]:
    last = stands.last
    step = ANEW if last is None else last.step
    return {"run": run.id, "folder": str(run.path), "attempt": run.attempt + 1, "step": step}


def _begun(run: RunRecord, stands: History, experiment: Experiment, *, anew: bool) -> Begun:
    """What is behind the next attempt; ``anew``: nothing that was evaluated counts any more."""
    step, every = stands.last.step if stands.last else 0, experiment.eval.every
    recorded = run.state.get("evaluation")
    kept = not anew and isinstance(recorded, dict) and "before" in recorded
    gone = bool(step) and assumed(experiment.server).snapshots is not Snapshots.immutable
    due = step // every * every if every else 0
    if not due or not experiment.eval.games or (gone and due < step):
        return Begun(step, kept or gone)

    from mtrl_cli.training.evaluation.games import Evaluations, step_label

    return Begun(step, kept or gone, Evaluations(run.path).read(step_label(due)) is None)


def _accepted(run: RunRecord, found: list[Difference], force: bool) -> list[Difference]:
    """The differences, if all of them may be.

    Raises:
        ConfigError: naming every key that may not, or not without ``--force``.
    """
    if all(difference.rule.safe and force for difference in found):
        return found
    keys = "1 key differs" if len(found) == 1 else f"{len(found)} keys differ"
    told = [f"{run.id} was started with another configuration, {keys}:"]
    told += [difference.describe() for difference in found]
    fixed = not all(difference.rule.safe for difference in found)
    raise ConfigError(
        "\n".join(told),
        hint="resume it without these, or start another run: mtrl train …"
        if fixed
        else "--force goes on with the new values",
    )


def _refuse_leaks(run: RunRecord, experiment: Experiment) -> None:
    """On some servers a fresh model is not fresh: what another one left is in its gradients."""
    left = unstepped(read_entries(run.path))
    if left and assumed(experiment.server).leaks_gradients:
        raise ConfigError(
            f"{run.id} broke off with gradients of {', '.join(left)} that were not stepped, and "
            "this server hands them on to the next model in its place",
            hint="start the server again, which clears them, and resume with --force",
        )


def _say_finished(run: RunRecord, committed: int, runs: Path) -> None:
    folder = runs_dir_option(runs)
    more = f"mtrl train --resume {run_tail(run.id)}{folder} train.steps={2 * committed} --force"
    told = f"{run.id} is finished, {committed} steps; for more steps: {more}"
    Screen(sys.stdout).prose(harmless(told))
