"""The commands that look at one run and change nothing of it."""

from pathlib import Path
from typing import Annotated

import typer

from mtrl_cli.cli.failures import told_in_one_line
from mtrl_cli.cli.options import AsJson, Debug, Run, RunsDir


def show(
    run: Run, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False, debug: Debug = False
) -> None:
    """Say what a run has reached.

    Status, evaluation, parity, the commits that stand, what is quarantined or unknown, and how to
    resume, publish and play it.
    """
    from mtrl_cli.cli.commands.show import show_run

    with told_in_one_line(debug=debug):
        raise typer.Exit(show_run(run, runs_dir, as_json=as_json))


def watch(run: Run, runs_dir: RunsDir = Path("runs"), debug: Debug = False) -> None:
    """Watch a run from another terminal.

    Read-only, from its files; ends when the run ends. q or Ctrl-C leave the run alone.
    """
    from mtrl_cli.cli.commands.watch import watch_run

    with told_in_one_line(debug=debug):
        raise typer.Exit(watch_run(run, runs_dir))


def trajectory(
    run: Run,
    which: Annotated[
        str | None,
        typer.Argument(metavar="GROUP[/MEMBER]", help="Without it the groups are listed."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="List every token, with its mask and logprob.")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per trajectory.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Read trajectories, turn by turn.

    On a terminal green was sampled, and is trained; what is dim or cyan is not.
    """
    from mtrl_cli.cli.trajectory import show_trajectories

    with told_in_one_line(debug=debug):
        code = show_trajectories(run, which, runs_dir, tokens=tokens, as_json=as_json)
        raise typer.Exit(code)


def register(app: typer.Typer) -> None:
    """Add them to ``app``."""
    for command in (show, watch, trajectory):
        app.command()(command)
