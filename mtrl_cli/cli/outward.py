"""The commands that carry a run outward, ``report`` and ``export``, and ``store``: what is kept."""

from pathlib import Path
from typing import Annotated

import typer

from mtrl_cli.cli.completion import complete_format, complete_run
from mtrl_cli.cli.failures import told_in_one_line
from mtrl_cli.cli.options import AsJson, Debug, Run, RunsDir
from mtrl_cli.errors import UsageError


def add_outward_commands(app: typer.Typer) -> None:
    app.command()(report)
    app.command()(export)
    app.command()(store)


def report(
    run: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs: ids, prefixes or tails of them, or last."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to; else RUN's report.html, or a compare-….html."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a web browser.")] = False,
    runs_dir: RunsDir = Path("runs"),
    debug: Debug = False,
) -> None:
    """Write runs as one HTML file.

    Learning curve, evaluations, time, groups, and a browser of trajectories; several runs are
    compared. The file needs no network.
    """
    from mtrl_cli.cli.commands.report import report_runs

    with told_in_one_line(debug=debug):
        raise typer.Exit(report_runs(run, runs_dir, out, show=show))


def export(
    run: Run,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="jsonl, parquet, tinker or transferqueue.",
            autocompletion=complete_format,
        ),
    ] = "jsonl",
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", min=1, help="One step; without it all that stand."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to; RUN.FORMAT in RUN's folder without it."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ADDRESS", help="The Ray cluster of the TransferQueue."),
    ] = None,
    partition: Annotated[
        str, typer.Option("--partition", metavar="NAME", help="The TransferQueue's partition.")
    ] = "train",
    runs_dir: RunsDir = Path("runs"),
    debug: Debug = False,
) -> None:
    """Hand a run's trajectories on.

    Tokens with mask, logprobs and advantages: as JSON lines, as Parquet, as the Datums that a
    training call sends, or to the TransferQueue of a distributed trainer.
    """
    from mtrl_cli.cli.commands.export import export_run, send_run

    with told_in_one_line(debug=debug):
        if form == "transferqueue":
            if to is None or out is not None:
                raise UsageError(
                    "--format transferqueue takes --to ADDRESS, that of a Ray cluster, not --out"
                )
            raise typer.Exit(send_run(run, to, partition, step, runs_dir))
        if to is not None:
            raise UsageError("--to goes with --format transferqueue; write --out FILE")
        raise typer.Exit(export_run(run, form, step, out, runs_dir))


def store(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--store", metavar="DIR", help="The store (server.store).", show_default=False
        ),
    ] = None,
    runs_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs-dir", metavar="DIR", help="Folder of run folders (runs); once for each."
        ),
    ] = None,
    prune: Annotated[
        list[str] | None,
        typer.Option(
            "--prune", metavar="KIND", help="Remove what is void, between or unknown; repeatable."
        ),
    ] = None,
    give_up: Annotated[
        str | None,
        typer.Option(
            "--give-up",
            metavar="RUN",
            help="Remove what only this run needs; it cannot be resumed any more.",
            autocompletion=complete_run,
        ),
    ] = None,
    days: Annotated[
        int,
        typer.Option("--days", metavar="N", min=1, help="Of unknown only what is older."),
    ] = 30,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what the embedded server keeps, and remove it.

    Lists the snapshots by run, and which may go: what no commit stands for (void), the steps
    between the first and the last of finished runs (between), what no run here has made (unknown).
    --give-up RUN removes what only that run needs.
    """
    from mtrl_cli.cli.commands.store import show_store

    with told_in_one_line(debug=debug):
        if prune and give_up is not None:
            raise UsageError("--give-up and --prune are two commands: write one of them")
        code = show_store(
            folder,
            runs_dir or [Path("runs")],
            prune or [],
            days,
            give_up=give_up,
            yes=yes,
            as_json=as_json,
        )
        raise typer.Exit(code)
