"""The commands that carry a run outward: ``report`` and ``export``."""

from pathlib import Path
from typing import Annotated

import typer

from mtrl_cli.cli.failures import told_in_one_line
from mtrl_cli.cli.options import Debug, Run, RunsDir


def add_outward_commands(app: typer.Typer) -> None:
    app.command()(report)
    app.command()(export)


def report(
    run: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs: ids, prefixes or tails of them, or last."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to; RUN's report.html without it."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a web browser.")] = False,
    runs_dir: RunsDir = Path("runs"),
    debug: Debug = False,
) -> None:
    """Write runs as one HTML file.

    Learning curve, evaluations, time, groups, and a browser of trajectories; several runs are
    compared. The file needs no network.
    """
    from mtrl_cli.cli.report import report_runs

    with told_in_one_line(debug=debug):
        raise typer.Exit(report_runs(run, runs_dir, out, show=show))


def export(
    run: Run,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="jsonl, parquet or tinker.")
    ] = "jsonl",
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", min=1, help="One step; without it all that stand."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to; RUN.FORMAT here without it."),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    debug: Debug = False,
) -> None:
    """Write a run's trajectories to a file.

    Tokens with mask, logprobs and advantages: as JSON lines, as Parquet, or as the Datums that a
    training call sends.
    """
    from mtrl_cli.cli.export import export_run

    with told_in_one_line(debug=debug):
        raise typer.Exit(export_run(run, form, step, out, runs_dir))
