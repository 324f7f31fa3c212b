"""A rollout's folder, written by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

RUN = "20261129-122135-a7aa"


def episode(group: int, member: int, **facts: Any) -> dict[str, Any]:
    """An episode of one turn of one token, in which ``facts`` differ."""
    return {
        "group": group, "member": member, "refill": 0, "task": {"id": "t-1", "seed": 1},
        "policy": "u/p", "policy_step": 0, "stop": "done", "reward": 1.0, "tokens": [1, 2],
        "spans": [["prompt", 0, 1], ["sampled", 1, 2]], "logprobs": [-0.5], "opening": [],
        "turns": [{"text": "hit", "tokens": 1, "calls": []}], "failure": None, "refusal": None,
        **facts,
    }  # fmt: skip


def failed(group: int, member: int, **facts: Any) -> dict[str, Any]:
    return episode(group, member, stop="env_failure", reward=None, failure="gone", **facts)


def rollout(runs: Path, *episodes: dict[str, Any], **state: Any) -> Path:
    """The folder of a rollout that is over."""
    run = runs / RUN
    (run / "trajectories").mkdir(parents=True)
    told = {"status": "finished", "experiment": "e", "kind": "rollout", "created": 1.0}
    (run / "run.json").write_text(json.dumps(told | state))
    with gzip.open(run / "trajectories" / "rollout.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(one) + "\n" for one in episodes)
    return run
