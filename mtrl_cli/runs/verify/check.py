"""`verify`: the token, group and commit rules, from a run's files alone.

    read (metrics, run.json, commits, groups, ledger) → history → groups → calls → trajectories

Files are read in the opposite order of writing: what an earlier one tells has then happened for
every later one, also while the run goes on. What only holds once a run has ended is asked of runs
that have; what a killed run left open is a note, as `mtrl cancel` and ``--resume`` settle it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.runs.commits import Commit
from mtrl_cli.runs.folder import SCRIPT
from mtrl_cli.runs.registry import RunRecord, read_run
from mtrl_cli.runs.shapes import STATE, wrong
from mtrl_cli.runs.verify import admissions, commits, ledger, metrics
from mtrl_cli.runs.verify.admissions import Admissions
from mtrl_cli.runs.verify.commits import Commits
from mtrl_cli.runs.verify.declared import Declared, read_declared
from mtrl_cli.runs.verify.episodes import Retelling
from mtrl_cli.runs.verify.ledger import Entries
from mtrl_cli.runs.verify.lines import Line, read_lines
from mtrl_cli.runs.verify.report import Report
from mtrl_cli.runs.verify.step_files import StepFiles

_ENDED = ("finished", "cancelled", "failed")
_PLAYED = "trajectories/rollout.jsonl.gz"
_STATE = "run.json"


def verify(folder: Path, retelling: Retelling | None = None) -> tuple[RunRecord, Report]:
    """Check the run in ``folder``; with ``retelling`` also that tokens and text agree."""
    report = Report()
    lines = {metrics.FILE: read_lines(folder, metrics.FILE, report)}
    run = read_run(folder)
    lines |= {
        name: read_lines(folder, name, report)
        for name in (commits.FILE, admissions.FILE, ledger.FILE)
    }
    declared = read_declared(folder, report)
    if not run.state:
        report.found(_STATE, None, "cannot be read")
    elif told := wrong(dict(run.state), STATE):
        report.found(_STATE, None, told)
    if run.status == "running":
        report.notes.append("the run goes on: what it writes now was not checked")
    trains = run.state.get("kind") == "train"
    name = str(run.state.get("id", folder.name))
    files = StepFiles(folder, name, declared, retelling, trains=trains)
    entries = ledger.read_entries(lines[ledger.FILE], report, promises=declared.promises)
    if run.state.get("recorded") == SCRIPT:
        _check_script(folder, files, report)
    elif trains:
        _check_training(run, lines, entries, declared, files, report, retelling)
    else:
        _check_played(run, lines[admissions.FILE], files, report)
    ledger.check_order(entries, report)
    if run.status in _ENDED:
        ledger.check_ends(entries, report)
    elif run.status != "running" and (
        any(call.open for call in entries.calls.values()) or run.held
    ):
        report.notes.append(f"what a run that was cut off left open: mtrl cancel {run.id}")
    return run, report


def _check_training(
    run: RunRecord,
    lines: Mapping[str, list[Line]],
    entries: Entries,
    declared: Declared,
    files: StepFiles,
    report: Report,
    retelling: Retelling | None,
) -> None:
    ended = run.status in _ENDED and run.status != "failed"
    history = commits.read_commits(lines[commits.FILE], report)
    admitted = admissions.read_admissions(lines[admissions.FILE], report)
    finished = run.status == "finished"
    name = str(run.state.get("id"))
    commits.check_commits(history, name, declared, ended=finished, report=report)
    admissions.check_admissions(admitted, history, _begun(run), declared, report)
    if retelling is not None and declared.seed is not None:
        admissions.check_tasks(admitted, "train", declared.seed, retelling, report)
    if run.status in _ENDED:
        admissions.open_admissions(admitted, run.attempt, report)
    ledger.check_rests(entries, history, ended=finished, report=report)
    metrics.check_metrics(lines[metrics.FILE], history, ended=ended, report=report)
    _check_state(run, history, declared, report)
    _check_steps(run.path, history, admitted, files, report)


def _begun_again(run: RunRecord, last: Commit) -> str | None:
    """The policy of an attempt that found nothing left to do: the last commit's, under its own
    name."""
    policy, step = _begun(run).get(run.attempt, (None, None))
    return policy if step == last.step else None


def _taken_up(run: RunRecord, history: Commits) -> int | None:
    """The step that the run's last attempt goes on from, while it has committed nothing."""
    if history.last is not None and history.last.attempt == run.attempt:
        return None
    match run.state.get("resumed"):
        case [*_, {"attempt": run.attempt, "step": int(step)}]:
            return max(step, 0)
    return None


def _begun(run: RunRecord) -> dict[int, tuple[str, int]]:
    """Attempt → the policy that it went on from, and the step."""
    begun = {}
    for resumed in run.state.get("resumed", ()):
        match resumed:
            case {"attempt": int(attempt), "policy": str(policy), "step": int(step)}:
                begun[attempt] = (policy, step)
    return begun


def _check_state(run: RunRecord, history: Commits, declared: Declared, report: Report) -> None:
    state, last = run.state, history.last
    step = state.get("step", 0)
    reached = 0 if last is None else last.step
    # A commit is written first, and a rollback last: a kill in between leaves a difference.
    other = () if run.status in _ENDED else (reached - 1, _taken_up(run, history))
    if step not in (reached, *other):
        report.found(_STATE, None, f"step is {step}, the commits that stand end at {reached}")
    if last is not None and run.attempt < last.attempt:
        report.found(_STATE, None, f"attempt is {run.attempt}, a commit is of {last.attempt}")
    if run.status == "finished":
        if last is not None and state.get("policy") not in (last.policy, _begun_again(run, last)):
            told = f"policy is {state.get('policy')}, the last commit's is {last.policy}"
            report.found(_STATE, None, told)
        if declared.steps is not None and reached != declared.steps:
            told = f"finished, but {reached} of {declared.steps} steps stand"
            report.found(_STATE, None, told)


def _check_steps(
    folder: Path, history: Commits, admitted: Admissions, files: StepFiles, report: Report
) -> None:
    names = {f"trajectories/step-{p.commit.step:06d}.jsonl.gz": p for p in history.standing}
    for name, placed in names.items():
        commit = placed.commit
        if commit.trajectories is None:
            continue
        policies: dict[int, tuple[str, int | None]] = {
            group: (found.policy, found.policy_step)
            for group in commit.groups
            if (found := admitted.consumed(group, commit.attempt)) is not None
        }
        files.check(name, commit.trajectories, commit.groups, policies, report)
    present = {f"trajectories/{path.name}" for path in (folder / "trajectories").glob("*.gz")}
    for name in sorted(present - names.keys()):
        report.notes.append(f"{name}: no commit stands for it, so it was not checked")


def _check_played(run: RunRecord, lines: list[Line], files: StepFiles, report: Report) -> None:
    """A run without training: what was played, against its groups."""
    outcomes: dict[int, str] = {}
    policies: dict[int, tuple[str, int | None]] = {}
    for line in lines:
        record: Mapping[str, Any] = line.record
        group, state, policy = (record.get(key) for key in ("group", "state", "policy"))
        if not isinstance(group, int) or not isinstance(state, str) or not isinstance(policy, str):
            report.found(admissions.FILE, line.number, "is no record of a group")
        elif group in outcomes:
            report.found(admissions.FILE, line.number, f"group {group} is there twice")
        else:
            outcomes[group], policies[group] = state, (policy, None)
    report.checked["groups"] += len(outcomes)
    if (run.path / _PLAYED).is_file() or outcomes:
        digest = run.state.get("trajectories")
        files.check(_PLAYED, digest, outcomes, policies, report)


def _check_script(folder: Path, files: StepFiles, report: Report) -> None:
    """A script records what it likes; what it does record must hold by itself."""
    report.notes.append("a script carried this run out: only its calls and episodes were checked")
    for path in sorted((folder / "trajectories").glob("*.gz")):
        files.check(f"trajectories/{path.name}", None, None, {}, report)
