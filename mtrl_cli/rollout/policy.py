"""A policy: an immutable snapshot, named by the URI that the server returned for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    uri: str
    step: int
    """How many optimizer steps made it."""


def snapshot_name(run: str, attempt: int, step: int) -> str:
    """The name under which a step is published. It carries the attempt, so that an old name
    never stands for new weights."""
    return f"{run}/a{attempt}/step-{step:06d}"
