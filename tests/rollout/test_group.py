"""Groups: one policy and task for all members, and what becomes of a member that fails."""

import pytest

from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.ports import InfrastructureFailure, PolicyFailure
from mtrl_cli.testing.world import END, Script, World
from tests.rollout.helpers import ScriptedPolicy, admission, play_groups, said

FAULTY = Script(on_reset=InfrastructureFailure("gone"))


def failing(*instances: int) -> World:
    """A world whose instances with these numbers fail at reset."""
    return World(lambda index: FAULTY if index in instances else Script())


def policy() -> ScriptedPolicy:
    return ScriptedPolicy(said(101, END))


async def test_members_share_policy_and_task_and_differ_in_their_seeds() -> None:
    scripted = policy()
    [group] = await play_groups(scripted, admission(size=4))
    assert [member.admission.member for member in group.members] == [0, 1, 2, 3]
    assert {request.policy for request in scripted.requests} == {"policy-0"}
    assert {request.tokens for request in scripted.requests} == {(2, 10, 11, 2)}
    assert len({request.seed for request in scripted.requests}) == 4


async def test_groups_come_back_in_the_order_they_were_given() -> None:
    groups = await play_groups(policy(), *(admission(size=2, group=n) for n in (5, 3, 9)))
    assert [group.admission.group for group in groups] == [5, 3, 9]


async def test_a_refill_keeps_everything_but_the_sampling_seed() -> None:
    scripted, world = policy(), failing(1)
    [group] = await play_groups(scripted, admission(size=2), world=world)
    assert group.failed is None
    [failure] = group.failures
    replaced = group.members[failure.admission.member]
    assert replaced.admission.group == failure.admission.group
    assert (failure.admission.refill, replaced.admission.refill) == (0, 1)
    assert failure.admission.seed(0) != replaced.admission.seed(0)
    assert world.opened == 3  # creates == group size + refills
    assert world.live == 0


async def test_refills_are_bounded_and_then_the_group_fails() -> None:
    world = World(lambda index: FAULTY)
    [group] = await play_groups(policy(), admission(size=1), world=world, max_refills=2)
    assert (group.failed, len(group.failures), world.opened) == ("env_failure", 3, 3)
    assert group.members == ()


async def test_a_permanent_failure_is_not_refilled() -> None:
    scripted = ScriptedPolicy(PolicyFailure("unknown policy", permanent=True))
    [group] = await play_groups(scripted, admission(size=1), max_refills=5)
    assert (group.failed, len(scripted.requests)) == ("policy_failure", 1)


async def test_shrink_leaves_failed_members_out_down_to_the_floor() -> None:
    rule = {"on_failure": "shrink", "floor": 2}
    [kept] = await play_groups(policy(), admission(size=3), world=failing(0), **rule)
    assert (kept.failed, len(kept.members)) == (None, 2)
    [lost] = await play_groups(policy(), admission(size=3), world=failing(0, 1), **rule)
    assert lost.failed == "env_failure"


async def test_drop_gives_the_group_up_at_the_first_failure() -> None:
    world = failing(0)
    [group] = await play_groups(policy(), admission(size=3), world=world, on_failure="drop")
    assert (group.failed, world.opened) == ("env_failure", 3)


async def test_an_error_that_is_nobodys_failure_surfaces_and_leaves_nothing_behind() -> None:
    world = World(lambda index: Script(on_reset=ZeroDivisionError("a bug")))
    with pytest.raises(ExceptionGroup) as raised:
        await play_groups(policy(), admission(size=3), world=world)
    assert raised.group_contains(ZeroDivisionError)
    assert world.live == 0


def test_seeds_do_not_collide_across_streams_and_indices() -> None:
    drawn = [
        seeds.sampling(stream, run, group, member, refill, turn)
        for stream in ("train", "eval")
        for run in range(3)
        for group in range(8)
        for member in range(8)
        for refill in range(2)
        for turn in range(4)
    ]
    drawn += [seeds.training_task(run, group) for run in range(20) for group in range(50)]
    drawn += [seeds.evaluation_task(run, game) for run in range(20) for game in range(50)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= seed < 2**62 for seed in drawn)


def test_seeds_are_the_same_in_every_process() -> None:
    assert seeds.training_task(101, 0) == seeds.derive("task/train", 101, 0)
    assert seeds.derive("a", 1) == 4195156705066287252
