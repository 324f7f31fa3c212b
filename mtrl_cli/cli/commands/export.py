"""``mtrl export``: a run's trajectories in a format that others read."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mtrl_cli.cli.commands.report import say_where_it_stands
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.commits import Commit, read_history
from mtrl_cli.runs.registry import RunRecord, find_trained

if TYPE_CHECKING:
    from mtrl_cli.training.plan import TrainingPlan


def export_run(asked: str, form: str, step: int | None, out: Path | None, runs: Path) -> int:
    """Export the run that ``asked`` names; the exit code. Prints the path of the file, which
    without ``out`` lies in the run's folder, beside its report.

    Raises:
        NoSuchRun: it is not there.
        UsageError: the format, the step or the path cannot be had.
        MtrlError: the run's folder is damaged.
    """
    from mtrl_cli.export import FILES, FORMATS
    from mtrl_cli.export.writers import export

    if form not in FILES:
        raise UsageError(f"--format {form}: no such format; write one of {', '.join(FORMATS)}")
    run, commits, plan = _chosen(asked, step, runs)
    ending = "parquet" if form == "parquet" else "jsonl"
    name = f"{run.id}{'' if step is None else f'-step-{step}'}"
    path = out or run.path / f"{name}.{'tinker.' if form == 'tinker' else ''}{ending}"
    count, notes = export(form, plan, run.path, commits, path)
    say_where_it_stands(run)
    for note in notes:
        Screen(sys.stderr).line(harmless(f"note: {note}"))
    what = "Datums" if form == "tinker" else "trajectories"
    Screen(sys.stderr).line(harmless(f"{count} {what} of {len(commits)} steps"))
    Screen(sys.stdout).line(harmless(str(path)))
    return 0


def send_run(asked: str, address: str, partition: str, step: int | None, runs: Path) -> int:
    """Send the groups of the run that ``asked`` names to a TransferQueue; the exit code.

    Raises:
        NoSuchRun: it is not there.
        UsageError: the step or the queue cannot be had.
        MtrlError: the run's folder is damaged, or the queue failed.
    """
    from mtrl_cli.export.samples import sample_groups
    from mtrl_cli.export.sending import send
    from mtrl_cli.export.transferqueue import connected

    run, commits, plan = _chosen(asked, step, runs)
    groups = (group for commit in commits for group in sample_groups(plan, run.path, commit))
    with connected(address) as queue:
        delivery = send(queue, groups, partition)
    say_where_it_stands(run)
    for note in delivery.notes:
        Screen(sys.stderr).line(harmless(f"note: {note}"))
    before = f"; {delivery.already} were sent before" if delivery.already else ""
    told = f"{delivery.groups} groups, {delivery.samples} trajectories{before}"
    Screen(sys.stderr).line(harmless(told))
    Screen(sys.stdout).line(harmless(partition))
    return 0


def _chosen(
    asked: str, step: int | None, runs: Path
) -> tuple[RunRecord, list[Commit], "TrainingPlan"]:
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.resolve import resolve
    from mtrl_cli.export.rows import chosen_commits
    from mtrl_cli.training.plan import TrainingPlan

    run = find_trained(runs, asked)
    commits = chosen_commits(read_history(run.path / "commits.jsonl"), run.path, step)
    plan = TrainingPlan(resolve(compose(str(run.path / "config.yaml")), secrets=False))
    return run, commits, plan
