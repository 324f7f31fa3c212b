"""The arguments and options that several commands share, with their completion."""

from pathlib import Path
from typing import Annotated

import typer

from mtrl_cli.cli.completion import complete_override, complete_run

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        hidden=True,
        help="conf=NAME, GROUP=OPTION, KEY=VALUE",
        autocompletion=complete_override,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen; contact and create nothing.")
]
Events = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object per event; with --dry-run the plan."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors and the final summary only.")
]
Multirun = Annotated[
    bool,
    typer.Option(
        "--multirun", "-m", help="Run every combination of values such as seed=1,2 one by one."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", metavar="DIR", help="Search this folder for YAML files first."),
]
RunsDir = Annotated[
    Path, typer.Option("--runs-dir", metavar="DIR", help="Folder of the run folders (run.dir).")
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Its id, a prefix or the tail of it, or last.",
        autocompletion=complete_run,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
