"""What all members of a group share cannot be changed by one of them."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from mtrl_cli.rollout.ports import TaskSample

ROW: dict[str, Any] = {"question": "2+2", "tests": [{"stdin": "1"}, {"stdin": "2"}], "tags": {"a"}}


def sample() -> TaskSample:
    return TaskSample("s", 1, copy.deepcopy(ROW))


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(question="3+3"),
        lambda row: row.__setitem__("question", "3+3"),
        lambda row: row.__delitem__("question"),
        lambda row: row.pop("question"),
        lambda row: row.popitem(),
        lambda row: row.clear(),
        lambda row: row.setdefault("answer", 4),
        lambda row: row.__ior__({"answer": 4}),
        lambda row: row["tests"][0].update(stdin="3"),
    ],
)
def test_a_row_cannot_be_changed(change: Callable[[Any], object]) -> None:
    made = sample()
    with pytest.raises(TypeError, match="shared and cannot be changed"):
        change(made.row)
    assert made == sample()


def test_lists_and_sets_in_a_row_cannot_grow() -> None:
    row = sample().row
    assert row["tests"] == ({"stdin": "1"}, {"stdin": "2"})
    assert row["tags"] == frozenset({"a"})


def test_what_the_task_keeps_is_its_own() -> None:
    mine = copy.deepcopy(ROW)
    made = TaskSample("s", 1, mine)
    mine["tests"][0]["stdin"] = "changed"
    assert made == sample()


def test_a_row_is_read_and_written_like_any_mapping() -> None:
    row = TaskSample("s", 1, {"a": [1, {"b": None}]}).row
    assert json.loads(json.dumps(row)) == {"a": [1, {"b": None}]}
    for copied in (copy.deepcopy(row), pickle.loads(pickle.dumps(row)), dict(row)):
        copied["a"] = 2
    assert row["a"] == (1, {"b": None})
