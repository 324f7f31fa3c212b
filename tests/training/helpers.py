"""Finished groups made by hand."""

from collections.abc import Sequence
from dataclasses import replace

from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.ports import Sample
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import Stop, Trajectory
from tests.rollout.helpers import admission

Turn = tuple[Sequence[int], Sequence[float], Sequence[int]]
"""Sampled ids, their logprobs, and the bridge after them."""

PLAIN: Sequence[Turn] = (((5, 6), (-0.5, -0.25), ()),)


def tokens_of(turns: Sequence[Turn], prompt: Sequence[int] = (2, 10, 2)) -> TokenSequence:
    tokens = TokenSequence(prompt)
    for ids, logprobs, bridge in turns:
        tokens.append_sampled(Sample(ids, logprobs, "stop"), "policy-0")
        if bridge:
            tokens.append_bridge(bridge)
    return tokens


def member(
    group: GroupAdmission,
    index: int,
    reward: float | None,
    turns: Sequence[Turn] = PLAIN,
    stop: Stop = Stop.DONE,
) -> Trajectory:
    return Trajectory(group.member(index), tokens_of(turns), opening=(), stop=stop, reward=reward)


def group(facts: GroupAdmission, members: Sequence[Trajectory]) -> Group:
    return Group(facts, tuple(members), failures=(), failed=None)


def group_of(*rewards: float | None, group: int = 0, stop: Stop = Stop.DONE) -> Group:
    facts = admission(size=len(rewards), group=group)
    members = tuple(member(facts, index, reward) for index, reward in enumerate(rewards))
    if stop is not Stop.DONE:
        members = (replace(members[0], stop=stop), *members[1:])
    return Group(facts, members, failures=(), failed=None)
