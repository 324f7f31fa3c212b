"""What dead runs have left: runs that nobody settled, borrows in quarantine, sandboxes.

Nothing is ended here; each finding names the command that ends it.
"""

from collections.abc import Mapping
from pathlib import Path

from mtrl_cli.assembly import dead_sandboxes
from mtrl_cli.config.schema import EnvKind, Experiment
from mtrl_cli.doctor.report import Speaker
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.registry import RunRecord, list_runs

_SHOWN = 5


async def dead_runs(speaker: Speaker, runs: Path, own: str | None) -> None:
    """Runs below ``runs`` that are lost, unreadable or hold something in quarantine; ``own`` is
    the doctor's own folder."""
    found = [run for run in list_runs(runs) if run.id != own]
    lost = [run for run in found if run.status == "lost" and "reaped" not in run.state]
    held = [run for run in found if run.quarantined and run not in lost]
    unreadable = [run for run in found if run.status == "unreadable"]
    for run in lost[:_SHOWN]:
        speaker.warn(f"run {run.id} died, and nobody has settled it", _cancel(run, runs))
    for run in held[:_SHOWN]:
        left = run.quarantined
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        speaker.warn(f"run {run.id} could not return {left[0]}{more}", _cancel(run, runs))
    for run in unreadable[:_SHOWN]:
        speaker.warn(f"{run.path / 'run.json'} cannot be read", "see docs/run-folder.md")
    hidden = sum(max(0, len(some) - _SHOWN) for some in (lost, held, unreadable))
    if hidden:
        speaker.warn(f"and {hidden} more", f"mtrl runs{runs_dir_option(runs)}")
    alive = [run for run in found if run.alive and run.status == "running"]
    if not (lost or held or unreadable):
        living = f", {len(alive)} running" if alive else ""
        speaker.ok(f"{len(found)} in {runs}{living}; none is lost or holds anything")


async def orphans(speaker: Speaker, experiment: Experiment, runs: Path, own: str | None) -> None:
    """Sandboxes that live at the provider, by the run that made them.

    Raises:
        MtrlError: the provider cannot be asked.
    """
    if experiment.env.kind is not EnvKind.e2b:
        speaker.ok("none are used")
        return
    known = {run.id: run for run in list_runs(runs)}
    listed = await dead_sandboxes(experiment.env).listed()
    left: Mapping[str, int] = {
        run: count
        for run, count in listed.items()
        if run != own and not (run in known and known[run].alive)
    }
    for run, count in sorted(left.items()):
        if run in known:
            speaker.warn(f"{count} of the dead run {run} still live", _cancel(known[run], runs))
        else:
            speaker.warn(
                f"{count} of run {run or '(none)'} live, which is not in {runs}",
                "if that run is dead: e2b sandbox list, and kill those with this mtrl_run",
            )
    if not left:
        speaker.ok(f"{sum(listed.values())} live, all of running runs" if listed else "none live")


def _cancel(run: RunRecord, runs: Path) -> str:
    return f"mtrl cancel {run.id}{runs_dir_option(runs)}"
