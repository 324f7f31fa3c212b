"""Figures of how a step's episodes came out."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mtrl_cli.rollout.group import Group
from mtrl_cli.training.step.metrics import outcome_metrics


def group(*rewards: float | None) -> Group:
    members: Any = [SimpleNamespace(reward=value) for value in rewards]
    return cast("Group", SimpleNamespace(members=members))


def test_the_share_that_passed_and_the_spread_within_groups() -> None:
    groups = [group(1.0, -1.0, None), group(0.5, 0.5), group(None), group()]
    figures = outcome_metrics(groups, lambda reward: reward > 0)
    assert figures == {
        "pass_rate": pytest.approx(3 / 4),
        "group_std": pytest.approx(0.5),
    }
    assert outcome_metrics([group(None)], bool) == {}
