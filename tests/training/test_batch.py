"""From groups to arrays: shifted by one, on sampled tokens only, advantages as the formula says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.rollout.group import Group
from mtrl_cli.training.step.batch import KlPenalty, build_batch
from mtrl_cli.training.step.groups import GroupRules, training_groups
from tests.rollout.helpers import admission
from tests.training.helpers import Turn, group_of, member

RULES = GroupRules(step=0)


def test_four_distinct_logprobs_reach_the_call_shifted_by_one() -> None:
    facts = admission(size=2)
    turns: list[Turn] = [((5, 6), (-0.5, -0.25), (3, 30, 2)), ((7, 8), (-2.0, -4.0), ())]
    members = (member(facts, 0, 1.0, turns), member(facts, 1, -1.0, turns))
    groups = training_groups([Group(facts, members, (), None)], RULES)

    batch = build_batch(groups, "mean", None)

    whole = [2, 10, 2, 5, 6, 3, 30, 2, 7, 8]
    first, second = batch.data
    assert first.tokens.tolist() == whole[:-1]
    assert first.targets.tolist() == whole[1:]
    assert first.logprobs.tolist() == [0, 0, -0.5, -0.25, 0, 0, 0, -2.0, -4.0]
    # A = ±1, divided by the 8 sampled tokens of the batch.
    assert first.advantages.tolist() == [0, 0, 0.125, 0.125, 0, 0, 0, 0.125, 0.125]
    assert second.advantages.tolist() == [0, 0, -0.125, -0.125, 0, 0, 0, -0.125, -0.125]


def test_the_kl_penalty_is_per_token_and_comes_after_normalisation() -> None:
    groups = training_groups([group_of(3, 1)], RULES)  # A = +1, -1 with mean_std
    reference = [np.array([-1.5, -0.25], np.float32), np.array([-0.5, -0.75], np.float32)]
    batch = build_batch(groups, "mean_std", KlPenalty(0.5, reference))
    # logp − ref: (1.0, 0.0) and (0.0, 0.5); four sampled tokens.
    assert batch.data[0].advantages[2:].tolist() == pytest.approx([(1 - 0.5) / 4, 1 / 4])
    assert batch.data[1].advantages[2:].tolist() == pytest.approx([-1 / 4, (-1 - 0.25) / 4])
    assert batch.kl == pytest.approx(1.5 / 4)


def test_constant_rewards_without_kl_send_nothing() -> None:
    batch = build_batch(training_groups([group_of(1, 1)], RULES), "mean_std", None)
    assert batch.data == ()


def test_constant_rewards_with_kl_keep_their_kl_term() -> None:
    groups = training_groups([group_of(1, 1)], RULES)
    reference = [np.array([-0.5, -0.25], np.float32), np.array([-0.5, -1.25], np.float32)]
    batch = build_batch(groups, "mean_std", KlPenalty(0.4, reference))
    assert len(batch.data) == 1  # the first member is at the reference: no signal at all
    assert batch.data[0].advantages[2:].tolist() == pytest.approx([0.0, -0.4 / 4])


def test_uneven_groups_have_their_own_baselines() -> None:
    groups = training_groups([group_of(1, 3), group_of(5, group=1)], RULES)
    batch = build_batch(groups, "mean_std", None)
    assert [float(datum.advantages[2]) * 6 for datum in batch.data] == pytest.approx([-1, 1])


turns = st.lists(
    st.tuples(
        st.lists(st.integers(10, 99), min_size=1, max_size=5),
        st.just(()),
        st.lists(st.integers(10, 99), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(shapes=st.lists(turns, min_size=2, max_size=4), seed=st.integers(0, 99))
def test_nothing_but_sampled_tokens_is_trained(shapes: list[list[Turn]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    facts = admission(size=len(shapes))
    members = tuple(
        member(facts, n, float(n), [(i, -rng.random(len(i)) - 0.1, b) for i, _, b in shape])
        for n, shape in enumerate(shapes)
    )
    batch = build_batch(training_groups([Group(facts, members, (), None)], RULES), "mean", None)
    for trajectory, datum in zip(batch.trajectories, batch.data, strict=True):
        expected = np.zeros(len(trajectory.tokens), np.float32)
        mask = np.zeros(len(trajectory.tokens), bool)
        position = 0
        for span in trajectory.tokens.spans:
            for index in range(span.start, span.end):
                if span.kind == "sampled":
                    expected[index] = trajectory.tokens.sampled_logprobs[position]
                    mask[index] = True
                    position += 1
        assert datum.logprobs.tolist() == expected[1:].tolist()
        assert (datum.advantages != 0).tolist() == mask[1:].tolist()
        assert datum.targets.tolist() == trajectory.tokens.ids.tolist()[1:]
