"""``mtrl export``: a run's trajectories in a format that others read."""

import sys
from pathlib import Path

from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.registry import find_run


def export_run(asked: str, form: str, step: int | None, out: Path | None, runs: Path) -> int:
    """Export the run that ``asked`` names; the exit code. Prints the path of the file.

    Raises:
        NoSuchRun: it is not there.
        UsageError: the format, the step or the path cannot be had.
        MtrlError: the run's folder is damaged.
    """
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.resolve import resolve
    from mtrl_cli.export.rows import chosen_commits
    from mtrl_cli.export.writers import FORMATS, export
    from mtrl_cli.training.plan import TrainingPlan

    if form not in FORMATS:
        raise UsageError(f"--format {form}: no such format; write one of {', '.join(FORMATS)}")
    run = find_run(runs, asked)
    commits = chosen_commits(read_history(run.path / "commits.jsonl"), run.path, step)
    plan = TrainingPlan(resolve(compose(str(run.path / "config.yaml")), secrets=False))
    ending = "parquet" if form == "parquet" else "jsonl"
    name = f"{run.id}{'' if step is None else f'-step-{step}'}"
    path = out or Path(f"{name}.{'tinker.' if form == 'tinker' else ''}{ending}")
    count, notes = export(form, plan, run.path, commits, path)
    for note in notes:
        Screen(sys.stderr).line(harmless(f"note: {note}"))
    what = "Datums" if form == "tinker" else "trajectories"
    Screen(sys.stderr).line(harmless(f"{count} {what} of {len(commits)} steps"))
    Screen(sys.stdout).line(harmless(str(path)))
    return 0
