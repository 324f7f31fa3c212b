"""How much a token counts, by hand."""

import numpy as np
import pytest

from mtrl_cli.training.step.batch import build_batch
from mtrl_cli.training.step.groups import GroupRules, training_groups
from mtrl_cli.training.step.weighting import Weighting, WeightingForm, token_weights
from tests.rollout.helpers import admission
from tests.training.helpers import Turn, group, member


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("token_mean", [1 / 10, 1 / 10, 0, 1 / 10]),
        ("sequence_mean", [1 / (3 * 2), 1 / (3 * 3), 0, 1 / (3 * 5)]),
        ("constant", [1 / (3 * 64), 1 / (3 * 64), 0, 1 / (3 * 64)]),
    ],
)
def test_weights(form: WeightingForm, expected: list[float]) -> None:
    found = token_weights([2, 3, 0, 5], Weighting(form, 64))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("form", ["token_mean", "sequence_mean", "constant"])
def test_nothing_has_no_weight(form: WeightingForm) -> None:
    assert token_weights([0, 0], Weighting(form, 64)) == [0, 0]
    assert token_weights([], Weighting(form, 64)) == []


@pytest.mark.parametrize(
    ("form", "long", "short"),
    [("token_mean", 1 / 4, 1 / 4), ("sequence_mean", 1 / 6, 1 / 2), ("constant", 1 / 20, 1 / 20)],
)
def test_a_batch_of_a_long_and_a_short_trajectory(
    form: WeightingForm, long: float, short: float
) -> None:
    facts = admission(size=2)
    turns: list[list[Turn]] = [[((5, 6, 7), (-1, -1, -1), ())], [((8,), (-1,), ())]]
    members = [member(facts, n, reward, turns[n]) for n, reward in enumerate((1.0, -1.0))]
    batch = build_batch(
        training_groups([group(facts, members)], GroupRules(step=0)),
        "mean",
        None,
        Weighting(form, 10),
    )
    first, second = (datum.advantages for datum in batch.data)
    assert first.tolist() == pytest.approx([0, 0, long, long, long])
    assert second.tolist() == pytest.approx([0, 0, -short])
    # Whatever the form, a datum's weights sum to what the mean asks for.
    assert np.abs(first).sum() == pytest.approx(3 * long)
