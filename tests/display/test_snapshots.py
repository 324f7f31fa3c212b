"""Whole screens, character by character, at 80 and at 140 columns and as lines.

After a change that is meant, ``python -m tests.display.test_snapshots`` writes them again: look at
the difference before it is committed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.views import Stopping
from mtrl_cli.rollout.events import MemberFinished
from mtrl_cli.training.events import (
    Comparison,
    Evaluated,
    Notice,
    Resumable,
    RunFinished,
    RunStarted,
    StepFinished,
)
from tests.display.test_presenters import ESCAPES, FOLDER, RUN, Watched, begun, stepped

POLICY = "tinker://model_2c8143bef9c7/sampler_weights/20261129-122135-a7aa/a1/step-000012"
HERE = Path(__file__).parent / "snapshots"


def _playing(width: int) -> str:
    watched = begun(Watched(width), groups=12)
    watched.see(MemberFinished(1, 0, "env_failure", None, 0, 0, 0, "sandbox gone"))
    watched.clock.now += 9
    return "\n".join(watched.frame())


def _step_over(width: int) -> str:
    return "\n".join(stepped(begun(Watched(width))).frame())


def _stopping(width: int) -> str:
    watched = begun(Watched(width))
    watched.presenter.stopping(Stopping(1, "Ctrl-C", watched.clock.now))
    watched.clock.now += 14
    return "\n".join(watched.frame())


def _steps(width: int | None) -> str:
    """Steps that lack figures, of a run whose KL term ends, one of them with failures."""
    plan = DisplayPlan("train blackjack", groups_per_step=20, figures=("kl", "parity"))
    watched = Watched(width, plan)
    watched.see(RunStarted(RUN, FOLDER, "blackjack", 150, "local", {}))
    usual = {"groups": 20.0, "tokens_sampled": 1420.0, "seconds_sampling": 1.0, "loss": -0.085}
    for step, figures in (
        (9, {"reward": -0.419, "pass_rate": 0.26, "groups_trained": 20.0, "kl": 0.0, **usual}),
        (10, {"reward": 0.25, "pass_rate": 1.0, "groups_trained": 3.0, "kl": -0.0018, **usual}
            | {"skipped/constant_reward": 17.0, "parity_max": 3.8e-6, "entropy": 0.088}),
        (11, {"reward": -12.5, "pass_rate": 0.0, "groups_trained": 18.0, "kl": 0.022, **usual}
            | {"skipped/env_failure": 2.0, "failed_episodes": 6.0, "parity_max": 0.021}),
        (12, {"solved": 0.3, "failed_episodes": 160.0, "groups_trained": 0.0, **usual}),
    ):  # fmt: skip
        watched.see(StepFinished(step, 150, f"u/step-{step:06}", figures))
    return watched.text.rstrip() if width is None else "\n".join(watched.frame()[:-5])


def _ended(width: int | None) -> str:
    """The last evaluation, and the summary of a run that was stopped."""
    versus = Comparison(POLICY, "before", 400, 0, 0.193, 0.038, (0.117, 0.268), 57, 328, 15)
    before = Evaluated("before", "u/v0", -0.403, 0.045, 400, 0.013)
    after = Evaluated("after", POLICY, -0.21, 0.047, 400, 0.026, versus=versus)
    watched = Watched(width)
    watched.see(
        RunStarted(RUN, FOLDER, "blackjack", 50, "local", {"random": -0.393, "optimum": -0.043}),
        Notice("the server is slow: 12 of the last 20 calls took longer than 30 s; see its log"),
        after,
        RunFinished(RUN, FOLDER, "cancelled", "SIGTERM", 12, 1920, 18200, POLICY, before, after,
            {"constant_reward": 17, "env_failure": 2}, failed=3, resumable=Resumable(12, 10)),
    )  # fmt: skip
    watched.presenter.close()
    lines = [line.rstrip() for line in ESCAPES.sub("", watched.text).splitlines()]
    return "\n".join(line for line in lines if line.strip())


def _plain() -> str:
    watched = stepped(begun(Watched(None)))
    watched.presenter.stopping(Stopping(1, "SIGTERM", watched.clock.now))
    assert not ESCAPES.search(watched.text)
    return watched.text.rstrip("\n")


SHOWN: Sequence[tuple[str, Callable[[int], str]]] = (
    ("playing", _playing),
    ("step-over", _step_over),
    ("stopping", _stopping),
    ("steps", _steps),
    ("ended", _ended),
)
SCREENS: Mapping[str, Callable[[], str]] = {
    f"{name}-{width}": lambda shown=shown, width=width: shown(width)
    for name, shown in SHOWN
    for width in (80, 140)
} | {"plain": _plain, "steps-plain": lambda: _steps(None), "steps-100": lambda: _steps(100)}


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(name: str) -> None:
    assert SCREENS[name]() == (HERE / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def test_every_screen_that_is_kept_is_compared() -> None:
    assert {file.stem for file in HERE.iterdir()} == set(SCREENS)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, shown in SCREENS.items():
        (HERE / f"{name}.txt").write_text(shown() + "\n", encoding="utf-8")
