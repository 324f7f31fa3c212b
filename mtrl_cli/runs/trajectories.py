"""Trajectories on disk: one gzipped JSON-lines file a step, one line a trajectory.

A line holds the token ids as the server returned them, the spans (which are the mask: only
``sampled`` tokens are trained) and one logprob per sampled token, in order. Everything that was
sampled is written, also what was not trained, so that a run can be checked from its files.
"""

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mtrl_cli.rollout.admission import thawed
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.trajectory import CallRecord, Trajectory, Turn

_COMPRESSION = 1
"""Most of the gain at a fraction of the time: the files are small."""


def write_trajectories(path: Path, groups: Iterable[Group]) -> None:
    """Write every trajectory of ``groups``, failed attempts included; all or nothing."""
    beside = path.with_name(path.name + ".tmp")
    with gzip.open(beside, "wt", compresslevel=_COMPRESSION, encoding="utf-8") as file:
        for group in groups:
            for trajectory in (*group.members, *group.failures):
                file.write(json.dumps(to_record(trajectory), separators=(",", ":")) + "\n")
    os.replace(beside, path)  # noqa: PTH105 - a rename, atomic on POSIX


def read_trajectories(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    admission, tokens = trajectory.admission, trajectory.tokens
    group = admission.group
    return {
        "run": group.run,
        "group": group.group,
        "member": admission.member,
        "refill": admission.refill,
        "task": {"id": group.task.id, "seed": group.task.seed},
        "policy": group.policy,
        "policy_step": group.policy_step,
        "template": thawed(group.template),
        "harness": thawed(group.harness),
        "stop": trajectory.stop.value,
        "reward": trajectory.reward,
        "failure": trajectory.failure,
        "refusal": trajectory.refusal,
        "tokens": tokens.ids.tolist(),
        "spans": [[span.kind.value, span.start, span.end] for span in tokens.spans],
        "logprobs": tokens.sampled_logprobs.tolist(),
        "opening": [dict(message) for message in trajectory.opening],
        "turns": [_turn(turn) for turn in trajectory.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {"text": turn.text, "tokens": turn.tokens, "calls": [_call(c) for c in turn.calls]}


def _call(call: CallRecord) -> dict[str, Any]:
    return {
        "name": call.name,
        "answer": call.answer,
        "reward": call.reward,
        "done": call.done,
        "error": call.error,
    }
