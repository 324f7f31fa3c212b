"""A run told again from its files: only what stands is told, as it was."""

import json
from pathlib import Path
from typing import Any

from mtrl_cli.rollout.events import GroupStarted
from mtrl_cli.runs.commits import rollback
from mtrl_cli.runs.registry import read_run
from mtrl_cli.training.events import Evaluated, FolderMade, RunFinished, RunStarted, StepFinished
from mtrl_cli.training.telling.reading import in_flight, story


def commit(step: int, attempt: int, state: str | None = None, **groups: str) -> dict[str, Any]:
    policy = f"u/a{attempt}/step-{step}"
    told = {name.removeprefix("g"): outcome for name, outcome in groups.items()}
    return {
        "kind": "commit",
        "step": step,
        "attempt": attempt,
        "policy": policy,
        "policy_step": step,
        "state": state,
        "snapshot": {},
        "trajectories": None,
        "groups": told,
    }


def write(file: Path, *records: dict[str, Any]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def figures(step: int, attempt: int, reward: float) -> dict[str, Any]:
    counts = {"episodes": 4.0, "tokens_sampled": 10.0}
    return {"step": step, "attempt": attempt, "time": 100.0 * attempt + step, **counts} | {
        "reward": reward
    }


def made(run: Path, **state: Any) -> Path:
    """Two attempts: steps 2 and 3 of the first are voided, and step 2 of the second stands."""
    run.mkdir()
    before = {"label": "before", "policy": "u", "mean": -0.4, "se": 0.1, "games": 9}
    told = {
        "kind": "train",
        "experiment": "blackjack",
        "status": "failed",
        "reason": "server gone",
        "created": 50.0,
        "ended": 500.0,
        "attempt": 2,
        "steps": 10,
        "policy": "u/a2/step-2",
        "evaluation": {"before": {**before, "invalid_call_share": 0.0, "of_a_later_version": 1}},
        "borrows": {"held": 0, "quarantined": ["sandbox sb-1"]},
    }
    (run / "run.json").write_text(json.dumps({**told, **state}))
    write(
        run / "commits.jsonl",
        commit(0, 1, "s0"),
        commit(1, 1, "s1", g0="trained", g1="constant_reward"),
        commit(2, 1, None, g2="trained"),
        commit(3, 1, None, g3="trained"),
        rollback(1, 2),
        commit(2, 2, None, g2="trained"),
    )
    write(
        run / "metrics.jsonl",
        figures(1, 1, 0.1),
        figures(2, 1, 0.2),
        figures(3, 1, 0.3),
        figures(2, 2, 0.25),
    )
    admitted = {"attempt": 2, "state": "admitted", "task": "t", "policy": "u", "policy_step": 1}
    write(
        run / "groups.jsonl",
        {"group": 2, **admitted},
        {"group": 3, **admitted},
        {"group": 2, "attempt": 2, "state": "trained"},
    )
    return run


def test_what_was_voided_is_not_told(tmp_path: Path) -> None:
    told = story(read_run(made(tmp_path / "run")))
    assert [type(event) for _, event in told] == [
        FolderMade,
        RunStarted,
        Evaluated,
        StepFinished,
        StepFinished,
        RunFinished,
    ]
    steps = [(when, one) for when, one in told if isinstance(one, StepFinished)]
    assert [(when, one.step, one.metrics["reward"]) for when, one in steps] == [
        (101.0, 1, 0.1),
        (202.0, 2, 0.25),
    ]
    assert steps[1][1].policy == "u/a2/step-2"
    ended = told[-1][1]
    assert isinstance(ended, RunFinished)
    assert (ended.status, ended.reason, ended.steps) == ("failed", "server gone", 2)
    assert (ended.episodes, ended.sampled_tokens) == (8, 20)
    assert ended.skipped == {"constant_reward": 1}
    assert ended.quarantined == ("sandbox sb-1",)
    assert ended.resumable is not None
    assert (ended.resumable.committed, ended.resumable.begins) == (2, 1)


def test_groups_that_are_not_consumed_are_in_flight(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    assert in_flight(run) == [GroupStarted(3, "t", 1, "u", 1)]  # without its configuration
