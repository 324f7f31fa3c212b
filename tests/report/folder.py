"""A run's folder written by hand, so that a report of it can be checked against known figures."""

import gzip
import json
from pathlib import Path
from typing import Any

from mtrl_cli.config.compose import compose
from mtrl_cli.runs.commits import Commit, rollback
from mtrl_cli.runs.trajectories import read_trajectories, sealed

RUN = "20261129-120000-beef"
REWARDS = {0: [1.0, -1.0, -1.0, -1.0], 1: [0.5, 0.5, 0.5, 0.5]}
"""Group → its members' rewards; both groups are consumed by step 1."""


def make_run(
    runs: Path,
    *,
    run: str = RUN,
    overrides: tuple[str, ...] = (),
    said: str = "hit",
    reason: str | None = None,
    state: dict[str, Any] | None = None,
) -> Path:
    """A finished run of two steps, of which the second was committed twice."""
    path = runs / run
    (path / "trajectories").mkdir(parents=True)
    composed = compose("blackjack", ["train.kl=0", "group.size=4", *overrides])
    (path / "config.yaml").write_text(composed.yaml)
    versus = {"label": "before", "against": "x", "pairs": 10, "left_out": 0, "mean": 0.25}
    versus |= {"se": 0.125, "interval": [0.1, 0.4], "wins": 5, "ties": 4, "losses": 1}
    before = {"label": "before", "policy": "p0", "mean": -0.5, "se": 0.0625, "games": 10}
    after = {**before, "label": "after", "mean": -0.25, "versus": versus}
    told = {
        "id": run,
        "experiment": "blackjack",
        "kind": "train",
        "status": "finished",
        "reason": reason,
        "attempt": 2,
        "created": 1000.0,
        "ended": 1100.0,
        "policy": "p2",
        "steps": 2,
        "step": 2,
        "references": {"optimum": -0.043},
        "evaluation": {"before": before, "after": after},
        "resumed": [{"attempt": 2, "time": 1050.0, "step": 1, "policy": "p1"}],
        "borrows": {"held": 0, "quarantined": ["sandbox <b>sb-1</b>"]},
    }
    (path / "run.json").write_text(json.dumps({**told, **(state or {})}))
    _lines(
        path / "metrics.jsonl",
        _metrics(1, 1, reward=-0.25, reward_se=0.3, tokens_sampled=16.0),
        _metrics(2, 1, reward=9.0, reward_se=0.1, tokens_sampled=999.0),
        {"step": 2, "attempt": 1, "time": 1.0, "eval/mean": 7.0, "eval/se": 0.1},
        _metrics(2, 2, reward=0.125, reward_se=0.2, tokens_sampled=24.0),
    )
    outcomes = {0: "trained", 1: "constant_reward"}
    _lines(
        path / "commits.jsonl",
        _commit(0, 1, {}, None),
        _commit(1, 1, outcomes, "digest"),
        _commit(2, 1, {2: "env_failure"}, None),
        rollback(1, 2),
        _commit(2, 2, {2: "trained", 3: "trained"}, None),
    )
    _lines(
        path / "ledger.jsonl",
        {
            "entry": "call",
            "key": "a1/fb/1",
            "state": "intent",
            "time": 10.0,
            "kind": "forward_backward",
        },
        {"entry": "call", "key": "a1/fb/1", "state": "done", "time": 12.5},
        {
            "entry": "call",
            "key": "a1/fb/2",
            "state": "intent",
            "time": 20.0,
            "kind": "forward_backward",
        },
        {"entry": "call", "key": "a1/fb/2", "state": "unknown", "time": 21.0},
        {"entry": "borrow", "key": "b", "state": "requested", "time": 1.0, "kind": "sandbox"},
        {"entry": "borrow", "key": "b", "state": "quarantined", "time": 2.0},
    )
    _trajectories(path / "trajectories" / "step-000001.jsonl.gz", run, said)
    return path


def _metrics(step: int, attempt: int, **figures: float) -> dict[str, Any]:
    known = {"episodes": 8.0, "groups": 2.0, "groups_trained": 1.0, "turns": 1.0}
    timed = {"seconds_sampling": 3.0, "seconds_training": 1.0}
    waits = {"seconds_policy": 0.5, "seconds_environment": 0.25}
    return {"step": step, "attempt": attempt, "time": 1.0, **known, **timed, **waits, **figures}


def _commit(step: int, attempt: int, groups: dict[int, str], digest: str | None) -> dict[str, Any]:
    return Commit(step, attempt, f"p{step}", step, None, groups, {}, digest).to_record()


def _trajectories(path: Path, run: str, said: str) -> None:
    with gzip.open(path, "wb") as file:
        for group, rewards in REWARDS.items():
            for member, reward in enumerate(rewards):
                record = {
                    "run": run,
                    "group": group,
                    "member": member,
                    "refill": 0,
                    "task": {"id": f"blackjack/{group}", "seed": group},
                    "policy": "p0",
                    "policy_step": 0,
                    "template": {},
                    "harness": {},
                    "stop": "done",
                    "reward": reward,
                    "failure": None,
                    "refusal": None,
                    "tokens": [632, 592, 198, 607, 627],
                    "spans": [["prompt", 0, 3], ["sampled", 3, 5]],
                    "logprobs": [-0.5, -0.25],
                    "opening": [{"role": "user", "content": said}],
                    "turns": [
                        {
                            "text": said,
                            "tokens": 2,
                            "calls": [
                                {
                                    "name": said,
                                    "answer": said,
                                    "reward": reward,
                                    "done": True,
                                    "error": False,
                                }
                            ],
                        }
                    ],
                }
                file.write(sealed(json.dumps(record, separators=(",", ":"))))


def _lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def lengthen(run: Path, tokens: int, said: str) -> None:
    """Make the trajectories of a run long: two tokens of a prompt, all others sampled."""
    file = run / "trajectories" / "step-000001.jsonl.gz"
    records = list(read_trajectories(file))
    with gzip.open(file, "wb") as out:
        for record in records:
            record["tokens"] = [200 + n % 400 for n in range(tokens)]
            record["spans"] = [["prompt", 0, 2], ["sampled", 2, tokens]]
            record["logprobs"] = [-0.001 * (n % 1000) for n in range(tokens - 2)]
            record["turns"][0]["text"] = said
            out.write(sealed(json.dumps(record, separators=(",", ":"))))
