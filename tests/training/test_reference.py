"""Reference logprobs: of the sampled tokens, one request for each distinct sequence."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.training.operations import TrainingError
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.step.reference import reference_logprobs
from tests.rollout.helpers import admission
from tests.training.helpers import member
from tests.training.runs import experiment

INITIAL = PolicySnapshot("initial", 0)


class Service:
    """Answers -(token) / 100 for every token, and counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    async def logprobs(self, policy: str, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.asked.append((policy, tuple(tokens)))
        values = np.array([-token / 100 for token in tokens], dtype=np.float32)
        values[0] = np.nan
        return values


async def test_equal_sequences_are_asked_for_once_and_each_gets_its_own() -> None:
    facts = admission(size=3, policy_step=1)
    hit = [((5, 6), (-0.5, -0.5), (3, 30, 2)), ((7,), (-0.5,), ())]
    stand = [((8, 9), (-0.5, -0.5), ())]
    members = [member(facts, n, 0.0, turns) for n, turns in enumerate((hit, stand, hit))]
    service = Service()

    found = await reference_logprobs(service, INITIAL, members)  # type: ignore[arg-type]

    expected = [[-0.05, -0.06, -0.07], [-0.08, -0.09], [-0.05, -0.06, -0.07]]
    for values, wanted in zip(found, expected, strict=True):
        assert values.tolist() == pytest.approx(wanted)
    assert sorted(service.asked) == [
        ("initial", (2, 10, 2, 5, 6, 3, 30, 2, 7)),
        ("initial", (2, 10, 2, 8, 9)),
    ]


async def test_a_reference_that_is_not_finite_is_refused() -> None:
    class Broken(Service):
        async def logprobs(self, policy: str, tokens: Sequence[int]) -> NDArray[np.float32]:
            return np.full(len(tokens), np.nan, dtype=np.float32)

    later = admission(policy_step=1)
    with pytest.raises(TrainingError, match="not finite"):
        await reference_logprobs(Broken(), INITIAL, [member(later, 0, 0.0)])  # type: ignore[arg-type]


async def test_what_the_initial_policy_sampled_is_its_own_reference() -> None:
    service = Service()
    members = [member(admission(policy_step=step), 0, 0.0) for step in (0, 1, 0)]

    found = await reference_logprobs(service, INITIAL, members)  # type: ignore[arg-type]

    assert [values.tolist() for values in found] == [
        [-0.5, -0.25],  # as they were sampled
        pytest.approx([-0.05, -0.06]),
        [-0.5, -0.25],
    ]
    assert service.asked == [("initial", (2, 10, 2, 5, 6))]


def test_a_trajectory_leaves_room_for_the_token_that_its_logprobs_cost() -> None:
    """A server computes them beside a sample of one token, and refuses what fills its window."""
    address = 'server.base_url="http://127.0.0.1:1"'
    made, _ = experiment(address, "server.context=300", "budget.trajectory_tokens=300")
    assert TrainingPlan(made).budget.context == 299
