"""The circles of a chart: so placed that none hides another.

Marks of the same figures at the same place are drawn as one, which tells how many it stands for;
others at the same place stand side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

APART = 10.0
"""Between the middles of two circles, in units of the chart."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One circle: at step ``x`` the height ``y`` ± ``reach`` (None: no bar).

    ``name`` is whose it is and ``kind`` what it is one of, for one that stands for several.
    """

    name: str
    kind: str
    x: float
    y: float
    reach: float | None
    colour: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A mark as it is drawn: how far beside its place, and what is written next to it."""

    mark: Mark
    tip: str
    beside: float = 0.0
    label: str = ""
    shared: bool = False
    """It stands for marks of several colours."""


def placed(marks: Sequence[Mark], middle: float) -> Iterator[Placed]:
    """The marks in their places; those left of ``middle`` (a step) move to the right, others to
    the left, so that they stay within the chart."""
    for x in dict.fromkeys(mark.x for mark in marks):
        merged: dict[tuple[float, float | None], list[Mark]] = {}
        for mark in marks:
            if mark.x == x:
                merged.setdefault((mark.y, mark.reach), []).append(mark)
        way = APART if x < middle else -APART
        for index, same in enumerate(merged.values()):
            yield replace(_one(same), beside=index * way)


def _one(same: Sequence[Mark]) -> Placed:
    first = same[0]
    if len(same) == 1:
        return Placed(first, first.name)
    names = ", ".join(mark.name for mark in same)
    shared = len({mark.colour for mark in same}) > 1
    return Placed(first, names, label=f"{len(same)} {first.kind}s, equal", shared=shared)
