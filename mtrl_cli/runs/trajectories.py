"""Trajectories on disk: one gzipped JSON-lines file a step, one line a trajectory.

A line holds the token ids as the server returned them, the spans (which are the mask: only
``sampled`` tokens are trained) and one logprob per sampled token, in order. Everything that was
sampled is written, also what was not trained, so that a run can be checked from its files.

Two digests make every byte count. A line ends with its own (`sealed`), which tells where a file
was changed. The file's is the SHA-256 of its whole text (``zcat FILE | sha256sum``); the commit
of the step holds it, so that no other file can stand in.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mtrl_cli.rollout.admission import thawed
from mtrl_cli.runs.files import DamagedFile, record_of, refuse_pipe, sync_folder

if TYPE_CHECKING:  # who only reads does not need the core
    from mtrl_cli.rollout.group import Group
    from mtrl_cli.rollout.trajectory import CallRecord, Trajectory, Turn

_COMPRESSION = 1
"""Most of the gain at a fraction of the time: the files are small."""


_SEAL = b',"sha256":"'

_NONE: Mapping[tuple[int, int], Sequence[float]] = MappingProxyType({})


def trajectory_file(run: Path, step: int) -> Path:
    """The file of a step, below a run's folder."""
    return run / "trajectories" / f"step-{step:06d}.jsonl.gz"


def step_of(file: Path) -> int | None:
    """The step whose trajectories a file holds by its name; None where it is no step's."""
    number = file.name.removeprefix("step-").partition(".")[0]
    return int(number) if number.isdecimal() else None


References = Mapping[tuple[int, int], Sequence[float]]
"""(group, member) → the initial policy's logprobs of the sampled tokens, float32 [sampled]."""


def write_trajectories(
    path: Path, groups: "Iterable[Group]", references: References = _NONE
) -> str:
    """Write every trajectory of ``groups``, failed attempts included; all or nothing.

    ``references`` are the logprobs of the KL penalty, of the members that it was asked for.

    Returns the SHA-256 of the text, in hex, once the file is on disk.
    """
    whole = hashlib.sha256()
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as out:
        with gzip.GzipFile("", "wb", _COMPRESSION, out, mtime=0) as file:
            for group in groups:
                for trajectory in (*group.members, *group.failures):
                    record = to_record(trajectory)
                    key = (record["group"], record["member"])
                    if not trajectory.failed and key in references:
                        record["reference"] = [float(f"{v:.9g}") for v in references[key]]
                    line = sealed(json.dumps(record, separators=(",", ":")))
                    whole.update(line)
                    file.write(line)
        out.flush()
        os.fsync(out.fileno())  # the commit that names it is durable
    beside.replace(path)
    sync_folder(path.parent)
    return whole.hexdigest()


def sealed(record: str) -> bytes:
    """The line of a JSON object: the object, with its SHA-256 as one more, last key."""
    text = record.encode()
    return text[:-1] + _SEAL + hashlib.sha256(text).hexdigest().encode() + b'"}\n'


def seal_holds(line: bytes) -> bool:
    """Whether a line is exactly as `sealed` made it."""
    body, seal, rest = line.rpartition(_SEAL)
    digest = hashlib.sha256(body + b"}").hexdigest()
    return bool(seal) and rest == digest.encode() + b'"}\n'


def read_trajectories(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file.

    Raises:
        DamagedFile: it cannot be unpacked to its end, a line is no record, or its seal does not
            hold. Files of earlier versions have no seals.
    """
    refuse_pipe(path)
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                record = record_of(line, path, number)
                if "sha256" in record and not seal_holds(line):
                    raise DamagedFile(path, f"line {number} was changed after it was written")
                yield record
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFile(path, str(error)) from error


def to_record(trajectory: "Trajectory") -> dict[str, Any]:
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


def _turn(turn: "Turn") -> dict[str, Any]:
    return {"text": turn.text, "tokens": turn.tokens, "calls": [_call(c) for c in turn.calls]}


def _call(call: "CallRecord") -> dict[str, Any]:
    return {
        "name": call.name,
        "arguments": _text(call.arguments),
        "answer": call.answer,
        "reward": call.reward,
        "done": call.done,
        "error": call.error,
    }


def _text(arguments: Mapping[str, Any]) -> str:
    """A model's arguments as JSON text: however deep they are, the line around them is sound."""
    try:
        return json.dumps(arguments, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return ""
