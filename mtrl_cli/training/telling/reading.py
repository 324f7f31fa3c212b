"""A run told again from its files, as the events that it told while it ran.

Whoever shows a live run can show one that is over, or one of another process: the events are the
same. Only what the files hold is told: steps by their commits that stand, evaluations by
``run.json``; not single turns, and of a training run not single episodes.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import GroupFinished, GroupStarted, MemberFinished, TurnSampled
from mtrl_cli.runs.commits import History, read_history
from mtrl_cli.runs.ledger import unstepped
from mtrl_cli.runs.reap import read_entries
from mtrl_cli.runs.registry import RunRecord, attempt_began
from mtrl_cli.runs.shapes import (
    ANYTHING,
    Fields,
    check_state,
    read_episodes,
    read_figures,
    read_groups,
    wrong,
)
from mtrl_cli.runs.takeover import ANEW, beginning
from mtrl_cli.training.events import (
    Comparison,
    Evaluated,
    FolderMade,
    Resumable,
    RunFinished,
    RunStarted,
    StepFinished,
)
from mtrl_cli.training.totals import Totals

Told = tuple[float, object]
"""When it happened, in Unix seconds, and the event."""


def story(run: RunRecord) -> list[Told]:
    """The events of ``run`` so far, in order; the last one is `RunFinished` once it is over.

    Raises:
        MtrlError: its commits are damaged.
    """
    check_state(run.path, run.state)
    state, began = run.state, attempt_began(run.state)
    history = read_history(run.path / "commits.jsonl")
    metrics = _metrics(run.path)
    told: list[Told] = [(began, _made(run)), (began, _started(run))]
    _check_evaluations(run)
    evaluation = evaluations(state)
    if "before" in evaluation:
        told.append((began, evaluation["before"]))
    for commit in history.commits[1:]:
        figures = metrics.get((commit.step, commit.attempt), {})
        when = float(figures.pop("time", began))
        steps = int(state.get("steps") or 0)
        told.append((when, StepFinished(commit.step, steps, commit.policy, figures)))
    if state.get("kind") == "rollout":
        told += ((began, event) for event in _played(run.path))
    if run.status == "running":
        return told
    ended = last_seen(run)
    told += ((ended, result) for label, result in evaluation.items() if label != "before")
    told.append((ended, _finished(run, history, evaluation)))
    return told


def last_seen(run: RunRecord) -> float:
    """When ``run`` ended, in Unix seconds; where its process was killed, its last sign of life."""
    ended = run.state.get("ended")
    if run.status != "lost" and isinstance(ended, int | float):
        return float(ended)
    signs = [attempt_began(run.state)]
    signs += (float(line.get("time", 0.0)) for line in read_figures(run.path / "metrics.jsonl"))
    with suppress(OSError):
        signs.append((run.path / "heartbeat").stat().st_mtime)
    return max(signs)


def evaluations(state: Mapping[str, Any]) -> dict[str, Evaluated]:
    """What ``run.json`` records of evaluations, by label."""
    recorded = state.get("evaluation")
    found = {}
    for label, figures in recorded.items() if isinstance(recorded, dict) else ():
        if isinstance(figures, dict):
            versus = figures.get("versus")
            known = _known(Evaluated, figures)
            known["versus"] = Comparison(**_known(Comparison, versus)) if versus else None
            found[str(label)] = Evaluated(**known)
    return found


def _check_evaluations(run: RunRecord) -> None:
    """Raises: MtrlError: one lacks what is told of every evaluation."""
    recorded: Mapping[str, Any] = run.state.get("evaluation") or {}
    for label, figures in recorded.items():
        for kind, given, at in (
            (Evaluated, figures, f"evaluation.{label}"),
            (Comparison, figures.get("versus") or None, f"evaluation.{label}.versus"),
        ):
            needed = {
                one.name: ANYTHING
                for one in fields(kind)
                if one.default is MISSING and one.default_factory is MISSING
            }
            if given is not None and (told := wrong(given, Fields(needed, {}), at)):
                raise MtrlError(f"{run.path / 'run.json'} is damaged: {told}")


def resumable(run: RunRecord, history: History) -> Resumable | None:
    """What a training run that has not finished can be resumed from.

    Raises:
        MtrlError: its ledger, where that matters, is damaged.
    """
    if run.state.get("kind") != "train" or run.status in ("finished", "running"):
        return None
    if history.last is None:
        return None
    stands, server = beginning(history).last, run.state.get("server") or {}
    return Resumable(
        history.last.step,
        ANEW if stands is None else stands.step,
        unstepped(read_entries(run.path)) if server.get("leaks_gradients") else (),
    )


def in_flight(path: Path) -> list[GroupStarted]:
    """The groups of a training run that were admitted and are not consumed, oldest first."""
    size = _group_size(path)
    groups: dict[int, GroupStarted] = {}
    for line in read_groups(path / "groups.jsonl"):
        group = int(line["group"])
        groups.pop(group, None)
        if line["state"] == "admitted":
            policy, step = str(line.get("policy", "?")), int(line.get("policy_step") or 0)
            groups[group] = GroupStarted(group, str(line.get("task", "?")), size, policy, step)
    return list(groups.values())


def trajectory_files(path: Path) -> list[Path]:
    """The files of trajectories that count, in the order of the steps."""
    return sorted((path / "trajectories").glob("*.jsonl.gz"))


def _made(run: RunRecord) -> FolderMade:
    return FolderMade(run.id, str(run.path), run.attempt)


def _started(run: RunRecord) -> RunStarted:
    state = run.state
    references = state.get("references")
    return RunStarted(
        run=run.id,
        folder=str(run.path),
        experiment=str(state.get("experiment", "?")),
        steps=int(state.get("steps") or 0),
        server="",
        references=references if isinstance(references, dict) else {},
    )


def _finished(run: RunRecord, history: History, evaluation: Mapping[str, Evaluated]) -> RunFinished:
    state = run.state
    totals = Totals.of(history, read_figures(run.path / "metrics.jsonl"))
    if state.get("kind") != "train":
        for record in _trajectories(run.path):
            totals.episodes += record["failure"] is None
            totals.failed += record["failure"] is not None
            totals.sampled_tokens += len(record["logprobs"])
    return RunFinished(
        run=run.id,
        folder=str(run.path),
        status=run.status,
        reason=state.get("reason"),
        steps=totals.steps,
        episodes=totals.episodes,
        sampled_tokens=totals.sampled_tokens,
        policy=state.get("policy"),
        before=evaluation.get("before") or evaluation.get("rival"),
        after=evaluation.get("after"),
        skipped=dict(totals.skipped),
        failed=totals.failed,
        quarantined=run.quarantined,
        evaluated=evaluation.get("eval"),
        resumable=resumable(run, history),
        seconds=last_seen(run) - attempt_began(state),
    )


def _metrics(path: Path) -> dict[tuple[Any, Any], dict[str, Any]]:
    """The figures of each step and attempt. Its time is that of its first line: what is added
    later, an evaluation, is no part of the step."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for line in read_figures(path / "metrics.jsonl"):
        step, attempt = line.pop("step", None), line.pop("attempt", None)
        figures = found.setdefault((step, attempt), {})
        figures.update(line | ({"time": figures["time"]} if "time" in figures else {}))
    return found


def _played(path: Path) -> Iterator[object]:
    """The groups of a rollout."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in _trajectories(path):
        groups.setdefault(int(record["group"]), []).append(record)
    states = {line["group"]: line["state"] for line in read_groups(path / "groups.jsonl")}
    for group, members in groups.items():
        first = members[0]
        rewards = [one["reward"] for one in members if one["reward"] is not None]
        size = len({one["member"] for one in members})  # a failed attempt is no member more
        policy, step = first["policy"], int(first["policy_step"])
        yield GroupStarted(group, first["task"]["id"], size, policy, step)
        for one in members:
            for number, turn in enumerate(one["turns"]):
                yield TurnSampled(group, int(one["member"]), number, int(turn["tokens"]))
            yield MemberFinished(
                group,
                int(one["member"]),
                str(one["stop"]),
                one["reward"],
                len(one["turns"]),
                len(one["tokens"]),
                0,
                one["failure"],
            )
        mean = sum(rewards) / len(rewards) if rewards else None
        yield GroupFinished(group, mean, str(states.get(group, "complete")))


def _trajectories(path: Path) -> Iterator[dict[str, Any]]:
    for file in trajectory_files(path):
        yield from read_episodes(file)


def _group_size(path: Path) -> int:
    """As the run's configuration has it; 1 where that cannot be told."""
    from mtrl_cli.config.compose import compose

    try:
        return int(compose(str(path / "config.yaml")).container["group"]["size"])
    except (MtrlError, LookupError, TypeError, ValueError):
        return 1


def _known(kind: type[Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in figures.items() if name in names}
