"""Taking over a run: its next attempt, in the same folder, by exactly one process.

Under the run's lock, in this order:

1. a run that lives is left alone;
2. what the last attempt left is settled, as `mtrl cancel` does;
3. the folder's record says: running, attempt + 1, this process. From here on everybody else finds
   a run that lives;
4. once a server has what the attempt begins with, `go_back` voids the commits after that step,
   durably; trajectories of those steps are moved to ``trajectories/voided-by-aN/``. Until then
   nothing is void: a training state that is lost costs no step that stands.

The attempt begins at the last commit that has a training state, or at an earlier one that is asked
for, where the last one's is lost. Without a state it begins anew, with a model of the same seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.runs.cancel import look, settled
from mtrl_cli.runs.commits import History, read_history, rollback
from mtrl_cli.runs.control import locked
from mtrl_cli.runs.files import write_document
from mtrl_cli.runs.folder import Redact, RunFolder
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.reap import Reaped
from mtrl_cli.runs.registry import RunRecord, given_up
from mtrl_cli.runs.trajectories import step_of

ANEW = -1
"""The step of an attempt that begins before the first commit."""


class StillRunning(MtrlError):  # noqa: N818 - a state, not a mistake
    """The run lives, so nobody else can go on with it."""

    exit_code = 4

    def __init__(self, run: RunRecord) -> None:
        state = run.state
        super().__init__(
            f"{run.id} is still running (attempt {run.attempt}, process {state.get('pid')} on "
            f"{state.get('host')})"
        )
        self.hint = f"end it first: mtrl cancel {run.id}{runs_dir_option(run.path.parent)}"


@dataclass(frozen=True, slots=True)
class Takeover:
    """A run in our hands: its folder, the commits that stand, what the last attempt left."""

    folder: RunFolder
    history: History
    reaped: Reaped | None


@dataclass(frozen=True, slots=True)
class NewConfig:
    """The configuration that the run goes on with, where it changed."""

    yaml: str
    """Secrets masked."""
    evaluates_anew: bool
    """Its evaluation cannot be compared with what was recorded."""


def refuse_live(path: Path) -> RunRecord:
    """The run in ``path`` as it stands now.

    Raises:
        StillRunning: it lives.
        MtrlError: its snapshots were given up.
    """
    run = refuse_running(path)
    if told := given_up(run):
        raise MtrlError(f"{told}: there is nothing to begin from; start another run")
    return run


def refuse_running(path: Path) -> RunRecord:
    """As `refuse_live`, also of a run whose snapshots were given up."""
    run = look(path)
    if run.status == "running":
        raise StillRunning(run)
    return run


def whole_history(run: RunRecord) -> History:
    """The commits of ``run`` that stand.

    Raises:
        MtrlError: they are damaged, or fewer than the run has told of: to begin before what is
            lost would train groups again.
    """
    path = run.path / "commits.jsonl"
    history = read_history(path)
    last = history.last.step if history.last else 0
    told = run.state.get("step", 0)
    if isinstance(told, int) and told > last:
        found = f"ends at step {last}" if history.last else "holds no commit"
        raise MtrlError(
            f"{path} {found}, but run.json tells of step {told}: the commits between are lost, and "
            "their groups would be trained again; put the file back from a copy, or start another "
            "run"
        )
    return history


def beginning(history: History, at: int | None = None) -> History:
    """The commits that stand for an attempt that begins now.

    Args:
        at: the step to begin at; None is the last one that has a training state, 0 begins anew.

    Raises:
        UsageError: the step has no training state.
    """
    last = history.last_with_state if at is None else history.at(at)
    if at == 0 or (at is None and last is None):
        return history.up_to(ANEW)
    if last is None or last.state is None:
        raise UsageError(
            f"no training state of step {at} stands; a resume can begin at {_or(states(history))}"
        )
    return history.up_to(last.step)


def states(history: History) -> list[int]:
    """The steps where an attempt can begin: 0, which is anew, and those with a training state."""
    return [0, *(commit.step for commit in history.commits if commit.step and commit.state)]


def _or(steps: Sequence[int]) -> str:
    return " or ".join(filter(None, [", ".join(map(str, steps[:-1])), str(steps[-1])]))


def take_over(
    path: Path,
    settle: Callable[[Path], Reaped],
    *,
    config: NewConfig | None = None,
    at: int | None = None,
    redact: Redact = str,
) -> Takeover:
    """Take the run in ``path`` over. Blocks: for the lock, and while its last attempt is settled.

    Args:
        settle: returns what a run without a process has left; see
            `mtrl_cli.training.settling.reaping`.
        at: the step to begin at; see `beginning`.

    Raises:
        StillRunning: it lives, or somebody else was quicker.
        UsageError: it cannot begin there.
        MtrlError: its files are damaged.
    """
    with locked(path):
        run, reaped = settled(refuse_live(path), settle)
        history = whole_history(run)
        stands = beginning(history, at)
        step = ANEW if stands.last is None else stands.last.step
        if config is not None:
            _change_config(path, run.state, config)
        folder = RunFolder.reopen(
            path, step=step, evaluation=not (config and config.evaluates_anew), redact=redact
        )
    return Takeover(folder, stands, reaped)


def go_back(folder: RunFolder, stands: History) -> None:
    """Void, for the run's present attempt, the commits that ``stands`` does not have."""
    step = ANEW if stands.last is None else stands.last.step
    last = read_history(folder.path / "commits.jsonl").last
    folder.goes_on(max(step, 0))
    if last is not None and last.step > step:
        folder.commits.append(rollback(step, folder.attempt), durable=True)
    _set_aside(folder.path / "trajectories", step, folder.attempt)


def _change_config(path: Path, state: Mapping[str, Any], config: NewConfig) -> None:
    """Keep the former configuration beside the new one, under the attempt that it served."""
    former = (path / "config.yaml").read_text(encoding="utf-8")
    write_document(path / f"config-a{state['attempt']}.yaml", former)
    write_document(path / "config.yaml", config.yaml)


def _set_aside(trajectories: Path, step: int, attempt: int) -> None:
    """Move the trajectories of steps after ``step``: they are made again, or were never made."""
    for file in sorted(trajectories.glob("step-*.jsonl.gz")):
        of = step_of(file)
        if of is not None and of > step:
            aside = trajectories / f"voided-by-a{attempt}"
            aside.mkdir(mode=0o700, exist_ok=True)
            file.replace(aside / file.name)
