"""`training_groups`: what passes, what does not, and how it is counted."""

import math
from dataclasses import replace

import pytest

from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.training.step.groups import GroupRules, OnTruncated, training_groups
from tests.rollout.helpers import admission
from tests.training.helpers import group_of, member

RULES = GroupRules(step=0)


def outcome(group: Group, rules: GroupRules = RULES) -> str:
    batch = training_groups([group], rules)
    return batch.outcomes[group.admission.group]


def test_groups_are_sorted_and_so_are_their_members() -> None:
    late, early = group_of(1, 0, group=9), group_of(0, 1, group=2)
    shuffled = replace(late, members=late.members[::-1])
    batch = training_groups([shuffled, early], RULES)
    assert [group.group for group in batch.groups] == [2, 9]
    assert [(t.admission.group.group, t.admission.member) for t in batch.trajectories] == [
        (2, 0), (2, 1), (9, 0), (9, 1),
    ]  # fmt: skip
    assert batch.groups[1].rewards == (1.0, 0.0)
    assert batch.skipped == {}


def test_a_failed_group_is_skipped_with_its_own_reason() -> None:
    failed = replace(group_of(0, 1), members=(), failed="env_failure")
    batch = training_groups([failed, group_of(0, 1, group=1)], RULES)
    assert batch.skipped == {"env_failure": 1}
    assert [group.group for group in batch.groups] == [1]


def test_equal_rewards_are_kept_for_their_kl_term_and_counted() -> None:
    batch = training_groups([group_of(1, 1, 1)], RULES)
    assert batch.skipped == {"constant_reward": 1}
    assert len(batch.trajectories) == 3


def test_rewards_that_are_equal_up_to_rounding_are_equal() -> None:
    batch = training_groups([group_of(0.1 + 0.2, 0.3)], RULES)
    assert batch.outcomes == {0: "constant_reward"}


def test_membership_is_each_index_exactly_once() -> None:
    whole = group_of(0, 1, 0)
    twice = replace(whole, members=(whole.members[0], whole.members[0], whole.members[2]))
    missing = replace(whole, members=whole.members[:2])
    assert outcome(twice) == "membership"
    assert outcome(missing) == "membership"
    assert outcome(missing, replace(RULES, least_members=2)) == "trained"


def test_a_group_delivered_twice_is_not_trained_twice() -> None:
    batch = training_groups([group_of(0, 1), group_of(0, 1)], RULES)
    assert len(batch.groups) == 1
    assert batch.outcomes == {0: "duplicate_group"}


def test_members_of_another_policy_are_refused() -> None:
    group = group_of(0, 1)
    stranger = member(replace(group.admission, policy="policy-1"), 1, 1.0)
    assert outcome(replace(group, members=(group.members[0], stranger))) == "policy_mismatch"


def test_staleness_is_measured_in_optimizer_steps() -> None:
    group = group_of(0, 1)
    assert outcome(group, GroupRules(step=1)) == "stale"
    assert outcome(group, GroupRules(step=1, max_policy_lag=1)) == "trained"


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward: float | None) -> None:
    assert outcome(group_of(0, reward)) == "bad_reward"


def test_a_group_without_a_sampled_token_is_refused() -> None:
    facts = admission(size=2)
    members = (member(facts, 0, 0.0, turns=()), member(facts, 1, 1.0, turns=()))
    assert outcome(Group(facts, members, (), None)) == "no_trained_token"


@pytest.mark.parametrize(("rule", "members"), [("penalize", 3), ("mask", 2)])
def test_truncated_members(rule: OnTruncated, members: int) -> None:
    group = group_of(-1, 1, 0, stop=Stop.TURN_TOKENS)
    batch = training_groups([group], replace(RULES, on_truncated=rule))
    assert batch.outcomes == {0: "trained"}
    assert len(batch.trajectories) == members


@pytest.mark.parametrize("on_truncated", ["penalize", "mask"])
def test_any_truncated_member_skips_its_group(on_truncated: OnTruncated) -> None:
    rules = replace(RULES, on_truncated=on_truncated, skip=frozenset({"model_truncated"}))
    cut, whole = group_of(-1, 1, 0, stop=Stop.TURN_TOKENS), group_of(-1, 1, 0, group=1)
    batch = training_groups([cut, whole], rules)
    assert batch.outcomes == {0: "model_truncated", 1: "trained"}
    assert [group.group for group in batch.groups] == [1]


def test_constant_reward_groups_are_left_out_where_the_rule_says_so() -> None:
    rules = replace(RULES, skip=frozenset({"constant_reward"}))
    batch = training_groups([group_of(1, 1), group_of(0, 1, group=1)], rules)
    assert batch.outcomes == {0: "constant_reward", 1: "trained"}
    assert [group.group for group in batch.groups] == [1]
    assert batch.skipped == {"constant_reward": 1}
