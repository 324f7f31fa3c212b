"""What an environment or a policy of somebody's own returns by mistake is a fault of its episode:
told in one line, with the others of its group played on."""

import math
from typing import Any

import pytest

from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    Environment,
    RefusedTrajectory,
    Sample,
    StepOutcome,
    TaskSample,
    ToolCall,
)
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.testing.world import END, NumberTask

from .helpers import ScriptedPolicy, admission, rollout_of, said

OUTCOMES: list[Any] = [
    ("20", 1.0),
    ("20", 1.0, True),
    None,
    {"text": "20"},
    StepOutcome(None, 1.0, done=True),  # type: ignore[arg-type]
    StepOutcome("20", None, done=True),  # type: ignore[arg-type]
    StepOutcome("20", "1.0", done=True),  # type: ignore[arg-type]
    StepOutcome("20", math.nan, done=True),
    StepOutcome("20", math.inf, done=True),
    StepOutcome("20", 1e308, done=True),
    StepOutcome("20", 1j, done=True),  # type: ignore[arg-type]
    StepOutcome("20", 1.0, done="False"),  # type: ignore[arg-type]
]

SAMPLES: list[Any] = [
    None,
    ([5], [-0.1], "stop"),
    {"tokens": [5]},
    Sample([5], [-0.1], "eos"),  # type: ignore[arg-type]
    Sample([5], [-0.1], None),  # type: ignore[arg-type]
    Sample([5.0], [-0.1], "stop"),  # type: ignore[list-item]
    Sample(None, [-0.1], "stop"),  # type: ignore[arg-type]
    Sample([5], None, "stop"),  # type: ignore[arg-type]
    Sample([5], ["x"], "stop"),  # type: ignore[list-item]
    Sample([5], [1e-300 * 1j], "stop"),  # type: ignore[list-item]
]


class Wrong:
    """The first instance's step returns ``first``; that of the others ends the episode."""

    def __init__(self, first: Any) -> None:
        self._next = iter([first])

    def lender(self) -> Lender[Environment]:
        return Lender("env", self._open, lambda one: one.close())

    async def _open(self, key: str) -> Environment:
        return _Instance(next(self._next, StepOutcome("20", 1.0, done=True)))

    async def close(self) -> None:
        pass


class _Instance:
    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    async def reset(self, sample: TaskSample, member: int) -> str:
        return "10 11"

    async def step(self, call: ToolCall) -> StepOutcome:
        return self._outcome  # type: ignore[no-any-return]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("wrong", OUTCOMES, ids=repr)
async def test_a_wrong_outcome_of_a_step_is_its_environments_fault(wrong: Any) -> None:
    policy = ScriptedPolicy(said(101, END))
    async with rollout_of(policy, task=NumberTask(), envs=Wrong(wrong)) as client:
        [group] = await client.run([admission(size=2)])
    [failed] = group.failures
    assert failed.stop is Stop.ENV_FAILURE
    assert "a StepOutcome with a text, a reward within" in (failed.failure or "")
    # The turn that it failed at is recorded, with what it sampled.
    assert [turn.tokens for turn in failed.turns] == [failed.tokens.sampled_count]
    assert [member.reward for member in group.members] == [1.0, 1.0]


@pytest.mark.parametrize("wrong", SAMPLES, ids=repr)
def test_what_is_no_sample_is_refused_and_changes_nothing(wrong: Any) -> None:
    sequence = TokenSequence([1, 2, 3])
    with pytest.raises(RefusedTrajectory) as caught:
        sequence.append_sampled(wrong, "p")
    assert caught.value.reason in ("no_sample", "bad_logprobs")
    assert (list(sequence.ids), sequence.sampled_count, len(sequence.spans)) == ([1, 2, 3], 0, 1)
