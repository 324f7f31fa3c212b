"""What the screen of one run of a sweep says of the sweep."""

from collections.abc import Sequence

import pytest

from mtrl_cli.display import lines
from mtrl_cli.display.plan import DisplayPlan, Place
from mtrl_cli.rollout.events import GroupFinished, GroupStarted, MemberFinished
from mtrl_cli.training.events import FolderMade, PhaseStarted, RunStarted, StepFinished
from tests.display.test_eta import Training
from tests.display.test_presenters import FOLDER, RUN, Watched

SECONDS = 70
"""Of the run: seven steps of ten seconds."""


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (None, ["ETA 00:01:00"]),
        (Place(2, 3), ["run ETA 00:01:00"]),
        (Place(1, 3, alike=True), ["run ETA 00:01:00", "sweep ETA 00:03:20"]),
        (Place(3, 4, alike=True, took=(90, 110)), ["run ETA 00:01:00", "sweep ETA 00:02:40"]),
        (Place(3, 3, alike=True, took=(90, 110)), ["run ETA 00:01:00", "sweep ETA 00:01:00"]),
    ],
)
def test_the_end_of_a_sweep_is_told_where_its_runs_are_alike(
    place: Place | None, told: Sequence[str]
) -> None:
    """Runs that are over tell how long the others take; before there is one, this one does."""
    training = Training(DisplayPlan("train x", place=place))
    next(now for now in training.moments() if training.state.step == 1)
    assert [*lines.etas(training.state, training.now)] == told
    assert training.now - training.state.started + 60 == SECONDS


def test_what_the_run_itself_does_not_know_is_not_told_of_the_sweep() -> None:
    place = Place(1, 3, alike=True)
    training = Training(DisplayPlan("train x", games=40, place=place), step=4)
    next(now for now in training.moments() if training.state.step == 5)
    assert [*lines.etas(training.state, training.now)] == ["run ETA 00:00:20 + evaluation"]


@pytest.mark.parametrize("width", [80, 140])
def test_the_head_says_which_run_it_is_of(width: int) -> None:
    plan = DisplayPlan("train blackjack", games=6000, place=Place(2, 12, alike=True, took=(66.0,)))
    watched = Watched(width, plan)
    assert watched.frame()[0].startswith("mtrl train blackjack  run 2/12  ")
    watched.see(FolderMade(RUN, FOLDER), RunStarted(RUN, FOLDER, "blackjack", 8, "local", {}, 5))
    watched.frame()
    assert watched.frame()[0].startswith("mtrl train blackjack  run 2/12: a7aa  ")
    watched.see(PhaseStarted("sampling", 5))
    watched.clock.now += 10
    watched.see(StepFinished(6, 8, "u/step-000006", {"reward": 0.5}))
    watched.see(
        PhaseStarted("evaluation"), *(GroupStarted(n, "s", 1, "u", 0, "eval") for n in range(6000))
    )
    for game in range(3500):
        watched.clock.now += 0.01
        watched.see(MemberFinished(game, 0, "done", -0.5, 2, 60, 0, stream="eval"))
        watched.see(GroupFinished(game, -0.5, "complete", "eval"))
    watched.frame()
    bar = watched.frame()[1]
    assert len(bar) <= width
    assert "58%  run ETA 00:00:" in bar
    assert ("sweep ETA 00:11:" in bar) == (width == 140)
    assert not bar.endswith("…")
