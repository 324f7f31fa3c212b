"""The commands. Each one parses, calls and presents; what it calls is imported when it is used,
so that help stays quick."""

from pathlib import Path
from typing import Annotated

import typer

from mtrl_cli import __version__
from mtrl_cli.cli import looking
from mtrl_cli.cli.completion import complete_run
from mtrl_cli.cli.config_commands import config
from mtrl_cli.cli.failures import told_in_one_line
from mtrl_cli.cli.help import WIDEST, CommandGroup, ExperimentCommand
from mtrl_cli.cli.options import (
    AsJson,
    ConfigDirs,
    Debug,
    DryRun,
    Events,
    Multirun,
    Overrides,
    Quiet,
    Run,
    RunsDir,
)
from mtrl_cli.cli.outward import add_outward_commands
from mtrl_cli.errors import UsageError

app = typer.Typer(
    name="mtrl",
    cls=CommandGroup,
    help="Multi-turn reinforcement learning of language-model agents, from the client's side.",
    epilog="mtrl train --help lists the experiments and what can be set.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mtrl {__version__}")
        raise typer.Exit


@app.callback()
def mtrl(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Multi-turn reinforcement learning of language-model agents, from the client's side."""


@app.command(cls=ExperimentCommand)
def train(
    overrides: Overrides = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with this run: id, part of it, or last; RUN@STEP.",
            autocompletion=complete_run,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --resume: change what is safe to change.")
    ] = False,
    runs_dir: Annotated[
        Path | None,
        typer.Option("--runs-dir", metavar="DIR", help="With --resume: where it is (runs)."),
    ] = None,
    multirun: Multirun = False,
    dry_run: DryRun = False,
    as_json: Events = False,
    quiet: Quiet = False,
    config_dir: ConfigDirs = None,
    debug: Debug = False,
) -> None:
    """Train an agent, publish policies.

    Plays groups of episodes, learns from them, and publishes a policy after each step.
    conf=NAME chooses the experiment (blackjack without it), KEY=VALUE changes it.
    """
    from mtrl_cli.cli.running.experiment import Asked, Shown, carry_out

    asked = Asked("train", overrides or [], config_dir or [])
    shown = Shown(dry_run, as_json, quiet)
    with told_in_one_line(debug=debug) as teller:
        if resume is not None:
            from mtrl_cli.cli.running.resume import Resume, resume_run

            if multirun:
                raise UsageError("--resume goes on with one run, --multirun starts several")
            told = Resume(resume, runs_dir or Path("runs"), asked, force)
            raise typer.Exit(resume_run(told, teller, shown))
        if force or runs_dir is not None:
            raise UsageError("--force and --runs-dir go with --resume; new runs go to run.dir=DIR")
        if multirun:
            from mtrl_cli.cli.running.multirun import sweep

            raise typer.Exit(sweep(asked, teller, shown))
        raise typer.Exit(carry_out(asked, teller, shown))


@app.command(cls=ExperimentCommand)
def rollout(
    overrides: Overrides = None,
    groups: Annotated[
        int,
        typer.Option(
            "--groups", metavar="N", min=1, max=1_000_000, help="Groups of episodes to play."
        ),
    ] = 4,
    show: Annotated[
        int,
        typer.Option(
            "--show",
            metavar="N",
            min=0,
            help="At the end print so many of the episodes, turn by turn.",
        ),
    ] = 0,
    multirun: Multirun = False,
    dry_run: DryRun = False,
    as_json: Events = False,
    quiet: Quiet = False,
    config_dir: ConfigDirs = None,
    debug: Debug = False,
) -> None:
    """Play episodes under one policy.

    policy=NAME, policy=RUN@STEP or policy=URI names it; without it the base model plays.
    Nothing is trained.
    conf=NAME chooses the experiment (blackjack without it), KEY=VALUE changes it.
    """
    from mtrl_cli.cli.running.experiment import Asked, Shown, carry_out

    asked = Asked("rollout", overrides or [], config_dir or [], groups, show)
    shown = Shown(dry_run, as_json, quiet)
    with told_in_one_line(debug=debug) as teller:
        if show and (multirun or (as_json and not dry_run)):
            raise UsageError(
                "--show goes with one run that is told as text; otherwise: mtrl trajectory RUN"
            )
        if multirun:
            from mtrl_cli.cli.running.multirun import sweep

            raise typer.Exit(sweep(asked, teller, shown))
        raise typer.Exit(carry_out(asked, teller, shown))


@app.command("eval", cls=ExperimentCommand)
def evaluate_policy(
    overrides: Overrides = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="POLICY",
            help="Play these games under it too: as policy=, or base, or none. Without it the"
            " policy that the run began from, else the base model.",
        ),
    ] = None,
    multirun: Multirun = False,
    dry_run: DryRun = False,
    as_json: Events = False,
    quiet: Quiet = False,
    config_dir: ConfigDirs = None,
    debug: Debug = False,
) -> None:
    """Evaluate a policy on held-out games.

    policy=NAME, policy=RUN@STEP or policy=URI names it; eval.games, eval.seed and eval.greedy say
    what is played. A second policy plays the same games, and both are compared game by game.
    """
    from mtrl_cli.cli.running import evaluate
    from mtrl_cli.cli.running.experiment import Asked, Shown

    asked = Asked("eval", overrides or [], config_dir or [], groups=0)
    carry_out = evaluate.sweep_evaluations if multirun else evaluate.evaluate
    with told_in_one_line(debug=debug) as teller:
        raise typer.Exit(carry_out(asked, against, teller, Shown(dry_run, as_json, quiet)))


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8008,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Folder of the weights.", show_default=False),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            "--api-key-env",
            metavar="NAME",
            help="Environment variable with the key that clients must send.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="On a terminal too say in JSON that it is ready.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Serve the small embedded model.

    Speaks the Tinker API, in the foreground, until Ctrl-C.
    """
    from mtrl_cli.cli.commands.serve import serve as run_server

    with told_in_one_line(debug=debug):
        run_server(host, port, store, api_key_env, as_json)


@app.command()
def runs(
    runs_dir: RunsDir = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """List the runs, the newest first.

    A run whose process is gone is shown as lost.
    """
    from mtrl_cli.cli.commands.runs import show_runs

    with told_in_one_line(debug=debug):
        raise typer.Exit(show_runs(runs_dir, as_json=as_json))


@app.command()
def cancel(
    run: Run,
    now: Annotated[
        bool, typer.Option("--now", help="Drop what is in flight, return what is held.")
    ] = False,
    kill: Annotated[
        bool, typer.Option("--kill", help="End its process at once, then return what it held.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait so long for its end.")
    ] = 90.0,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End a run, and say what is left of it.

    A running one drains: issued work settles, what was learned is published and committed.
    Of a run that died, what it held is returned. Repeating is harmless.
    """
    from mtrl_cli.cli.commands.cancel import cancel_run
    from mtrl_cli.runs.control import Ask

    ask = Ask.KILL if kill else Ask.STOP if now else Ask.DRAIN
    with told_in_one_line(debug=debug) as teller:
        raise typer.Exit(cancel_run(run, ask, wait, runs_dir, teller, as_json=as_json))


@app.command(cls=ExperimentCommand)
def doctor(
    overrides: Overrides = None,
    no_training: Annotated[
        bool,
        typer.Option("--no-training", help="Create no model: do not compare the trainer."),
    ] = False,
    as_json: AsJson = False,
    config_dir: ConfigDirs = None,
    debug: Debug = False,
) -> None:
    """Check what an experiment needs, and give back what that took.

    Packages, configuration, secrets, tokenizer and template; one environment, one sampled turn, the
    trainer against the sampler; what dead runs have left. Exit code 1 when something fails.
    """
    from mtrl_cli.cli.commands.doctor import consult

    with told_in_one_line(debug=debug) as teller:
        raise typer.Exit(
            consult(
                overrides or [], config_dir or [], teller, trains=not no_training, as_json=as_json
            )
        )


dev = typer.Typer(
    name="dev",
    cls=CommandGroup,
    help="Servers on this machine to try mtrl out with.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(dev)
app.add_typer(config)
looking.register(app)


@dev.command("e2b-emulator")
def e2b_emulator(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 0,
    debug: Debug = False,
) -> None:
    """Emulate E2B on this machine.

    Plays conf=blackjack_e2b without an account. Prints the environment variables that lead there,
    and serves until Ctrl-C.
    """
    from mtrl_cli.cli.commands.dev import e2b_emulator as run_emulator

    with told_in_one_line(debug=debug):
        run_emulator(port)


@app.command()
def verify(
    run: Run,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a run from its files alone.

    Tokens, groups, commits and training calls, against the rules that mtrl keeps. One line for
    each thing that is wrong, with file and line; exit code 1 if there is any.
    """
    from mtrl_cli.cli.commands.verify import verify_run

    with told_in_one_line(debug=debug) as teller:
        raise typer.Exit(verify_run(run, runs_dir, teller, as_json=as_json))


@app.command()
def publish(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run: its id, a part of it, or last. With --export, also a name."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", min=0, help="The step; without it the last commit."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What to call it.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Also download the weights (safetensors)."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List what has a name.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Give a run's policy a name that stays.

    The name is played with policy=NAME, and never stands for other weights.
    """
    from mtrl_cli.cli.commands.publish import publish_run, show_policies

    with told_in_one_line(debug=debug):
        if list_them:
            if run is not None or step is not None or name is not None or export is not None:
                raise UsageError("--list stands alone, with --runs-dir and --json")
            raise typer.Exit(show_policies(runs_dir, as_json=as_json))
        code = publish_run(run, step=step, name=name, export=export, runs=runs_dir, as_json=as_json)
        raise typer.Exit(code)


add_outward_commands(app)
