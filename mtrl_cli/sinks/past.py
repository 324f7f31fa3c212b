"""What stands of a run as an attempt begins: the figures that a tracker should show so far.

A resume that goes back voids later steps (`runs.commits`). A tracker has them already, and hardly
one can take a point back. So the attempt that voided them goes on under another name in the
tracker, ``RUN-a3`` for the third, and tells there again what stands; what was voided stays under
the old name. An attempt that voids nothing goes on where the last one ended.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.commits import rollback, standing
from mtrl_cli.runs.files import read_records

_NO_FIGURES = ("step", "attempt", "time")


@dataclass(frozen=True, slots=True)
class Point:
    """Figures at a step."""

    step: int
    figures: Mapping[str, float]
    time: float
    """When they were made, in Unix seconds."""


@dataclass(frozen=True, slots=True)
class Past:
    """What is behind an attempt."""

    attempt: int = 1
    voided_by: int | None = None
    """The last attempt, up to this one, that voided steps."""
    points: tuple[Point, ...] = ()
    """The figures of the steps that stand, in the order in which they were made."""

    @property
    def voids(self) -> bool:
        """This attempt voided steps that trackers have."""
        return self.voided_by == self.attempt

    def name(self, run: str) -> str:
        """What the run is called in trackers that cannot take a point back."""
        return run if self.voided_by is None else f"{run}-a{self.voided_by}"

    def after(self, *points: Point) -> "Past":
        """With ``points`` before all others."""
        return replace(self, points=(*points, *self.points))


def read_past(folder: Path, attempt: int) -> Past:
    """What was behind ``attempt`` of the run in ``folder``; the attempt itself may be under way.

    Raises:
        MtrlError: its files are damaged.
    """
    try:
        records = [
            record
            for record in read_records(folder / "commits.jsonl")
            if record["attempt"] < attempt + (record["kind"] == "rollback")
        ]
        records += _going_back(folder, attempt, records)
        voids = [int(record["attempt"]) for record in records if record["kind"] == "rollback"]
        points = [
            Point(
                line["step"],
                {name: float(value) for name, value in line.items() if name not in _NO_FIGURES},
                float(line.get("time", 0.0)),
            )
            for line in standing(records).of(read_records(folder / "metrics.jsonl"))
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MtrlError(f"{folder}: {error}; mtrl verify says where") from error
    return Past(attempt, voids[-1] if voids else None, tuple(points))


def _going_back(
    folder: Path, attempt: int, records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rollback that ``attempt`` will write once a server has what it begins with."""
    if any(record["attempt"] == attempt for record in records):
        return []
    state = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    begun = [one for one in state.get("resumed", ()) if one["attempt"] == attempt]
    last = standing(records).last
    if not begun or last is None or last.step <= begun[-1]["step"]:
        return []
    return [rollback(begun[-1]["step"], attempt)]
