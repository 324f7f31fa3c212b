"""The recorded reference logprobs of a KL penalty: what verify says of wrong ones."""

from typing import Any

import pytest

from mtrl_cli.runs.verify.declared import Declared
from mtrl_cli.runs.verify.episodes import episode, flaws


def record(policy_step: int, reference: list[float] | None) -> dict[str, Any]:
    call = {"name": "play", "arguments": '{"action":"hit"}', "answer": "won", "reward": 1.0,
            "done": True, "error": False}  # fmt: skip
    found = {
        "run": "r", "group": 0, "member": 0, "refill": 0, "task": {"id": "t", "seed": 1},
        "policy": "p", "policy_step": policy_step, "stop": "done", "reward": 1.0, "refusal": None,
        "tokens": [1, 2, 3], "spans": [["prompt", 0, 1], ["sampled", 1, 3]],
        "logprobs": [-0.5, -0.25], "opening": [],
        "turns": [{"text": "", "tokens": 2, "calls": [call]}],
    }  # fmt: skip
    return found if reference is None else {**found, "reference": reference}


@pytest.mark.parametrize(
    ("step", "reference", "says"),
    [
        (3, None, []),
        (3, [-1.0, -0.25], []),
        (0, [-0.5, -0.25], []),
        (3, [-1.0], ["2 sampled tokens have 1 reference logprobs"]),
        (3, [-1.0, 0.5], ["a reference logprob is not finite and ≤ 0"]),
        (0, [-0.5, -0.3],
         ["its policy is the initial one, and its reference logprobs are not its own"]),
    ],
)  # fmt: skip
def test_reference_logprobs(step: int, reference: list[float] | None, says: list[str]) -> None:
    assert list(flaws(episode(1, record(step, reference)), Declared(), None)) == says
