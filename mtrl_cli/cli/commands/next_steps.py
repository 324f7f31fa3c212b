"""What can be done with a run: commands, and only those that would not be refused.

Each one is asked for by what its command itself asks: a resume by the commits that stand and by
what its server leaves in the next model, a publication by whether the server keeps snapshots. What
the server does is what the run has recorded of it, since composing a configuration takes longer
than all the rest.
"""

import shlex
from collections.abc import Iterator

from mtrl_cli.display.summary import going_on
from mtrl_cli.display.text import run_tail
from mtrl_cli.display.wrapping import Fact
from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.commits import History
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.registry import RunRecord, given_up
from mtrl_cli.runs.takeover import whole_history
from mtrl_cli.training.telling.reading import resumable, trajectory_files


def next_steps(run: RunRecord, history: History) -> Iterator[Fact]:
    """The commands that ``run`` is fit for."""
    if run.status == "running":
        yield _command(run, "watch", "watch")
        yield _command(run, "end it", "cancel")
        return
    server = run.state.get("server") or {}
    gone = given_up(run)
    if gone:
        yield Fact("GIVEN UP", f"{gone}: it cannot be resumed; what has a name is kept")
    elif (run.path / "config.yaml").is_file():
        yield from _resume(run, history)
    trained = run.state.get("kind") == "train" and history.last is not None and history.last.step
    if trained and not gone and server.get("snapshots") == "immutable":
        yield _command(run, "publish", "publish", " --name NAME")
    if trajectory_files(run.path):
        yield _command(run, "read it", "trajectory")
    yield _command(run, "check it", "verify")


def settling(run: RunRecord) -> Iterator[Fact]:
    """What returns what a run held whose process is gone."""
    if run.status == "lost" and "reaped" not in run.state:
        yield Fact("LOST", "its process is gone; what it held is returned by:")
        yield _command(run, "", "cancel")


def _resume(run: RunRecord, history: History) -> Iterator[Fact]:
    left = resumable(run, history)
    if left is None:
        return
    try:
        whole_history(run)
    except MtrlError as error:
        yield Fact("DAMAGED", str(error))
        return
    yield from going_on(left, str(run.path))


def _command(run: RunRecord, label: str, name: str, more: str = "") -> Fact:
    typed = f"mtrl {name} {shlex.quote(run_tail(run.id))}{runs_dir_option(run.path.parent)}{more}"
    return Fact(label, typed, copied=True)
