"""From the arguments of ``train`` and ``rollout`` to a dry run or a run."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mtrl_cli.cli.failures import Teller
from mtrl_cli.config.compose import Composed, compose
from mtrl_cli.config.errors import ConfigError, together
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.rules.workload import FROM_THE_START, Begun
from mtrl_cli.config.schema import Experiment
from mtrl_cli.display.terminal import Screen, claim_stdout
from mtrl_cli.display.text import harmless
from mtrl_cli.runs.places import check_runs_dir

if TYPE_CHECKING:
    from mtrl_cli.cli.running.session import Output, Session, Work
    from mtrl_cli.display.plan import DisplayPlan, Place

_OF_TRAINING = ("train.", "eval.", "audit.", "seed", "group.per_step")
"""What keys begin with that do not change how a policy is played."""


@dataclass(frozen=True)
class Asked:
    """What the user asked for. ``groups`` is how many groups a rollout plays, ``show`` how many of
    its episodes are printed at the end, ``place`` where it stands in a sweep."""

    command: str
    overrides: Sequence[str]
    config_dirs: Sequence[Path] = ()
    groups: int | None = None
    show: int = 0
    place: "Place | None" = None

    @property
    def trains(self) -> bool:
        return self.command == "train"


@dataclass(frozen=True)
class Shown:
    """How the user wants to be told: ``--dry-run``, ``--json``, ``--quiet``."""

    dry_run: bool = False
    as_json: bool = False
    quiet: bool = False

    @cached_property
    def events(self) -> TextIO | None:
        """Where events go; standard output is claimed at the first call."""
        return claim_stdout() if self.as_json and not self.dry_run else None

    def output(self, *, goes_on: bool = False) -> "Output":
        from mtrl_cli.cli.running.session import Output

        return Output(self.quiet, self.events, goes_on)


def carry_out(asked: Asked, teller: Teller, shown: Shown) -> int:
    """The exit code of a dry run or of a run."""
    composed = compose(None, asked.overrides, asked.config_dirs)
    teller.concerns(composed)
    if not asked.trains and any(one.key == "group.per_step" for one in composed.overrides):
        told = f"group.per_step is of training; --groups says what is played: {asked.groups}"
        Screen(sys.stderr).line(f"note: {told}")
    if shown.dry_run:
        return show_plan(asked, composed, shown.as_json)
    session, work = prepared(asked, composed, teller, shown, goes_on=asked.show > 0)
    code = session.run(work)
    finished = session.state.finished
    if asked.show and finished is not None and finished.folder:
        from mtrl_cli.cli.running.session import LINGER, leave_after
        from mtrl_cli.cli.trajectory import show_episodes

        show_episodes(Path(finished.folder), asked.show, teller.redact)
        leave_after(LINGER, code)
    return code


def planned(
    asked: Asked,
    composed: Composed,
    more: Mapping[str, Any] | None = None,
    begun: Begun = FROM_THE_START,
) -> dict[str, Any]:
    """What would happen; ``more`` are facts that win over the plan's. ``begun`` is what a training
    has behind it.

    Raises:
        ConfigError: it could not.
    """
    from mtrl_cli.cli.running import dry_run

    experiment = resolve(composed, secrets=False)
    refuse_invalid(experiment, composed, training=asked.trains)
    check_runs_dir(experiment.run.dir)
    facts = dry_run.plan(asked.command, composed, experiment, asked.groups, begun)
    if asked.command == "rollout" and experiment.policy is not None:
        from mtrl_cli.training.policies.choose import choose_policy

        chosen = choose_policy(experiment, experiment.policy)
        facts["policy"] = chosen.uri if chosen is not None else None
        facts["warning"] = chosen.strange_to(experiment) if chosen is not None else None
    return facts | dict(more or {})


def show_plan(
    asked: Asked,
    composed: Composed,
    as_json: bool,
    more: Mapping[str, Any] | None = None,
    begun: Begun = FROM_THE_START,
) -> int:
    """Print what would happen, as `planned`; the exit code."""
    from mtrl_cli.cli.running import dry_run

    facts = planned(asked, composed, more, begun)
    screen, redact = Screen(sys.stdout), composed.redact
    if as_json:
        screen.line(redact(json.dumps(facts, indent=2)))
    else:
        for line in dry_run.text(facts):
            screen.prose(harmless(redact(line)), dry_run.LABEL)
    if dry_run.lacking(facts):
        resolve(composed)  # raises what the run would: the variable, and the key that needs it
    if problems := facts["problems"]:
        raise together([ConfigError(one, at=composed.setter(one)) for one in problems])
    return 0


def prepared(
    asked: Asked, composed: Composed, teller: Teller, shown: Shown, *, goes_on: bool = False
) -> "tuple[Session, Work]":
    """A training or a rollout that is fit to be run, and what shows it."""
    from mtrl_cli.cli.running.session import Session

    experiment = resolve(composed)
    refuse_invalid(experiment, composed, training=asked.trains)
    check_runs_dir(experiment.run.dir)
    session = Session(
        plan=display_plan(asked, experiment),
        teller=teller,
        play=_play_command(asked, composed),
        output=shown.output(goes_on=goes_on),
    )
    if asked.trains:
        from mtrl_cli.training.run import train

        return session, partial(train, experiment, composed.yaml, redact=composed.redact)
    from mtrl_cli.training.play import play

    groups = asked.groups or 1
    work = partial(play, experiment, composed.yaml, groups=groups, redact=composed.redact)
    return session, work


def display_plan(asked: Asked, experiment: Experiment, policies: int = 0) -> "DisplayPlan":
    """What is shown of a run; ``policies`` is how many an evaluation plays."""
    from mtrl_cli.display.plan import DisplayPlan

    figures = (("kl", experiment.train.kl > 0), ("parity", experiment.audit.every > 0))
    return DisplayPlan(
        title=f"{asked.command} {experiment.name}",
        games=experiment.eval.games,
        games_during=experiment.eval.games_during,
        evaluate_every=experiment.eval.every,
        concurrency=experiment.run.concurrency,
        drain_timeout=experiment.run.drain_timeout,
        keep_groups=asked.command == "rollout",
        readable=asked.command == "rollout",
        total_groups=asked.groups,
        policies=policies,
        groups_per_step=experiment.group.per_step if asked.trains else 0,
        figures=[name for name, has in figures if asked.trains and has],
        place=asked.place,
    )


def _play_command(asked: Asked, composed: Composed) -> str | None:
    """The short way to play what was trained: only where nothing but the name matters."""
    matters = [one.key for one in composed.overrides if not one.key.startswith(_OF_TRAINING)]
    if matters or asked.config_dirs or "/" in composed.conf:
        return None
    named = any(argument.startswith("conf=") for argument in asked.overrides)
    return "mtrl rollout" + (f" conf={shlex.quote(composed.conf)}" if named else "")
