"""What stands as an attempt begins, and what a tracker is told of it."""

from pathlib import Path

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.sinks.past import Past, Point, read_past
from tests.report.folder import RUN, make_run


def told(past: Past) -> list[tuple[int, float]]:
    return [(point.step, point.figures["reward"]) for point in past.points]


def test_voided_steps_are_not_among_what_stands(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    first, second, third = (read_past(run, attempt) for attempt in (1, 2, 3))
    assert (first.points, first.voids, first.name(RUN)) == ((), False, RUN)
    assert told(second) == [(1, -0.25)]
    assert (second.voids, second.name(RUN)) == (True, f"{RUN}-a2")
    assert told(third) == [(1, -0.25), (2, 0.125)]
    assert (third.voids, third.name(RUN)) == (False, f"{RUN}-a2")
    assert {"step", "attempt", "time"}.isdisjoint(third.points[0].figures)


def test_what_came_before_training_is_told_first(tmp_path: Path) -> None:
    past = read_past(make_run(tmp_path), 2).after(Point(0, {"reward": -1.0}, 5.0))
    assert told(past) == [(0, -1.0), (1, -0.25)]
    assert past.voids


def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "metrics.jsonl").write_text('{"step": 1, "attempt": 1, "reward": []}\n')
    with pytest.raises(MtrlError, match="mtrl verify says where"):
        read_past(run, 2)
