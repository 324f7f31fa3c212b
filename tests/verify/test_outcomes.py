"""The outcome that a verification derives is the one that training decides, over many groups."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.ports import Sample
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import FAILED, Stop, Trajectory
from mtrl_cli.runs.trajectories import to_record
from mtrl_cli.runs.verify.declared import Declared
from mtrl_cli.runs.verify.episodes import episode
from mtrl_cli.runs.verify.outcomes import outcome
from mtrl_cli.training.step.groups import GroupRules, training_groups
from tests.rollout.helpers import admission

STOPS = (Stop.DONE, Stop.ANSWER, Stop.TURN_TOKENS, Stop.CONTEXT, Stop.TIMEOUT, Stop.ENV_FAILURE)
MEMBERS = st.lists(
    st.tuples(st.sampled_from(STOPS), st.sampled_from((-1.0, 0.0, 1.0)), st.booleans()),
    min_size=2,
    max_size=4,
)


def played(members: Sequence[tuple[Stop, float, bool]]) -> Group:
    """A group as the rollout leaves it, with ``on_failure: drop``."""
    facts = admission(size=len(members))
    attempts = []
    for index, (stop, reward, speaks) in enumerate(members):
        tokens = TokenSequence((2, 10, 2))
        tokens.append_sampled(Sample([5], [-0.5], "stop") if speaks else Sample([], [], "stop"), "")
        worth = None if stop in FAILED else reward
        attempts.append(
            Trajectory(facts.member(index), tokens, opening=(), stop=stop, reward=worth)
        )
    ended = tuple(attempt for attempt in attempts if not attempt.failed)
    failures = tuple(attempt for attempt in attempts if attempt.failed)
    failed = None
    if failures:
        reasons = [failure.stop.value for failure in failures]
        failed = max(reasons, key=lambda reason: (reasons.count(reason), -reasons.index(reason)))
    return Group(facts, ended, failures, failed)


@pytest.mark.parametrize("rule", ["penalize", "mask", "skip_group"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(members=MEMBERS)
def test_the_outcome_is_the_same(rule: str, members: Sequence[tuple[Stop, float, bool]]) -> None:
    group = played(members)
    skips = frozenset(("model_truncated",)) if rule == "skip_group" else frozenset()
    kept = "mask" if rule == "mask" else "penalize"
    decided = training_groups([group], GroupRules(step=0, on_truncated=kept, skip=skips))
    episodes = [
        episode(line, json.loads(json.dumps(to_record(trajectory))))
        for line, trajectory in enumerate((*group.members, *group.failures), 1)
    ]
    declared = Declared(
        size=len(members),
        on_failure="drop",
        on_truncated=rule,
        skips_truncated=rule == "skip_group",
    )
    assert outcome(episodes, declared, trains=True) == decided.outcomes[group.admission.group]
