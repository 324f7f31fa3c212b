"""Groups to a queue, each exactly once.

The queue itself remembers what it was given, for as long as it lives: a mark for each group, in a
partition of its own that no trainer reads. ``sending`` is written before a group's samples,
``sent`` after them. A later export leaves out what was sent, also where the trainer has consumed
and cleared it. Where it was broken off between the two marks, the samples that are still there
are written again under their own keys, which changes nothing; if they are not there, they were
consumed or never written, and the group is named instead of sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mtrl_cli.export.samples import Sample, SampleGroup

MARKS = "mtrl-sent"
"""The partition of the marks."""


class Queue(Protocol):
    def tags(self, partition: str) -> Mapping[str, Mapping[str, Any]]:
        """Key → tag of what the partition holds."""

    def put(self, partition: str, samples: Sequence[Sample]) -> None:
        """Add the samples one after the other, or write those that are there again."""

    def mark(self, partition: str, key: str, tag: Mapping[str, Any]) -> None:
        """Set the tag of a key that has no data."""


@dataclass(frozen=True, slots=True)
class Delivery:
    groups: int
    samples: int
    already: int
    """Groups that were sent before."""
    notes: tuple[str, ...]


def send(queue: Queue, groups: Iterable[SampleGroup], partition: str) -> Delivery:
    """Put ``groups`` into ``partition``, in their order, unless they were sent before."""
    marks = queue.tags(MARKS)
    sent = samples = already = 0
    notes: list[str] = []
    voided = 0
    for group in groups:
        told = marks.get(group.key, {}).get("state")
        if told == "sent":
            already += 1
            continue
        keys = {sample.key for sample in group.samples}
        if told == "sending" and not keys <= queue.tags(partition).keys():
            notes.append(
                f"group {group.group} is left out: an earlier export was broken off as it was "
                "sent, and its samples are not in the queue, so they were consumed or never "
                f"arrived; transfer_queue.kv_clear('{group.key}', '{MARKS}') lets it be sent"
            )
            continue
        queue.mark(MARKS, group.key, {"state": "sending"})
        queue.put(partition, group.samples)
        queue.mark(MARKS, group.key, {"state": "sent"})
        sent += 1
        samples += len(group.samples)
        voided += _was_sent_by_another_attempt(group, marks)
    if voided:
        notes.append(
            f"{voided} of these groups were sent before as an attempt played them whose step a "
            "resume has voided; the queue was given both"
        )
    return Delivery(sent, samples, already, tuple(notes))


def _was_sent_by_another_attempt(group: SampleGroup, marks: Mapping[str, Any]) -> bool:
    others = (f"{group.run}/a{attempt}/g{group.group}" for attempt in range(1, group.attempt))
    return any(key in marks for key in others)
