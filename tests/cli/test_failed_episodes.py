"""Episodes that fail while others do not: told once a kind, with file and line, and counted."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from mtrl_cli.rollout.events import MemberFinished
from mtrl_cli.training.telling.failing import KINDS, Failing, Losses
from tests.cli.processes import mtrl

ENVIRONMENT = """
from mtrl_cli.tasks.blackjack.env import BlackjackEnvironment


class Sometimes(BlackjackEnvironment):
    def step(self, action, **more):
        told = super().step(action, **more)
        if told.done and told.reward > 0:
            raise KeyError("winner")
        return told
"""


def failed(text: str, trace: str | None = None) -> MemberFinished:
    return MemberFinished(0, 0, "env_failure", None, 1, 10, 0, text, trace)


def test_the_first_of_each_kind_is_told() -> None:
    told: list[str] = []
    failing = Failing(told.append)
    failing.heard(MemberFinished(0, 0, "done", 1.0, 1, 10, 0))
    for number in range(5):
        failing.heard(failed(f"session {number} was lost at 0x7f{number}a"))
        failing.heard(failed("reward is nan", trace="Traceback …"))
    assert told == [
        "an episode failed (env_failure) and has no reward: session 0 was lost at 0x7f0a",
        "an episode failed (env_failure) and has no reward: reward is nan; its traceback is in"
        " log.txt",
    ]
    for kind in "abcdefghijklmnopq":
        failing.heard(failed(f"it raised {kind}{kind}"))
    assert len(told) == KINDS


NAN = [f"Env{n} returned the reward nan" for n in range(5)]


@pytest.mark.parametrize(
    ("played", "reasons", "says"),
    [
        (0, (), None),
        (10, (), None),
        (11, NAN, None),
        (20, ["lost"], None),
        (20, ["lost", "lost"], "2 of 20 episodes of step 1 failed, all alike: lost"),
        (51, NAN, None),
        (10, NAN, "5 of 10 episodes of step 1 failed, all alike: Env0 returned the reward nan"),
        (9, [*NAN, "lost"],
         "6 of 9 episodes of step 1 failed, 5 of them alike: Env0 returned the reward nan"),
        (2, ["lost"], "1 of 2 episodes of step 1 failed: lost"),
        (3, ["lost", "late"], "2 of 3 episodes of step 1 failed, none alike, such as: lost"),
        (5, NAN, None),  # the run ends with the reason
    ],
)  # fmt: skip
def test_many_episodes_of_a_batch_failed(
    played: int, reasons: Sequence[str], says: str | None
) -> None:
    assert Losses(played, reasons).told("step 1") == says


def test_an_environment_that_fails_now_and_then(tmp_path: Path) -> None:
    (tmp_path / "sometimes.py").write_text(ENVIRONMENT)
    ended = mtrl(
        "rollout", "--groups", "6", "group.size=8", "env.entrypoint=sometimes.py:Sometimes",
        "group.on_failure=shrink", "server.store=store", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stdout.splitlines() if "an episode failed" in line]
    assert len(told) == 1
    assert "WARN" in told[0]
    assert "KeyError: 'winner'" in told[0]
    line = ENVIRONMENT.splitlines().index('            raise KeyError("winner")') + 1
    assert f"sometimes.py:{line}" in told[0] or f"sometimes.py, line {line}" in told[0]

    (folder,) = (tmp_path / "runs").glob("2*")
    assert "winner" in (folder / "log.txt").read_text()
    count = int(
        re.findall(r"^failed +(\d+) of \d+ episodes ", ended.stdout + ended.stderr, re.M)[0]
    )
    shown = mtrl("trajectory", "last", "--json", cwd=tmp_path)
    rewards = [json.loads(one)["reward"] for one in shown.stdout.splitlines()]
    assert count == rewards.count(None) > 0
    later = mtrl("show", "last", cwd=tmp_path).stdout
    assert f"failed     {count} of 48 episodes" in later
    (warned,) = [line for line in later.splitlines() if line.startswith("warned")]
    assert warned.split(maxsplit=1)[1] == told[0].partition("WARN  ")[2]
