"""When a run will be over: steps and evaluations of known lengths, on a clock of the test's own."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from mtrl_cli.display import lines
from mtrl_cli.display.pace import Eta
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.snapshot import restore, to_record
from mtrl_cli.display.state import RunState
from mtrl_cli.display.views import Stopping
from mtrl_cli.rollout.events import GroupFinished, GroupStarted
from mtrl_cli.training.events import Evaluated, PhaseStarted, RunStarted, StepFinished

STEP, GAME, FIRST = 10.0, 0.5, 4.0
"""Seconds of a step, of a game, and of an evaluation's first game."""


@dataclass
class Training:
    """A training that keeps to its timetable, moment by moment."""

    plan: DisplayPlan
    steps: int = 7
    step: int = 0
    now: float = 100.0
    end: float = 0.0
    state: RunState = field(init=False)

    def __post_init__(self) -> None:
        self.state = RunState(self.plan, self.now)
        self.state.apply(RunStarted("r", "f", "x", self.steps, "s", {}, self.step), self.now)

    def moments(self) -> Iterator[float]:
        """Every half second and every event: what is told then."""
        if self.step == 0:
            yield from self._evaluation("before", None, self.plan.games)
        for number in range(self.step + 1, self.steps + 1):
            self._see(PhaseStarted("sampling", number - 1))
            for half in range(20):
                if half == 14:
                    self._see(PhaseStarted("training", number - 1))
                yield self._passes(0.5)
            self._see(StepFinished(number, self.steps, "u/v", {}))
            yield self.now
            every = self.plan.evaluate_every
            if every and number % every == 0 and number < self.steps:
                games = self.plan.games_during
                yield from self._evaluation(f"step {number}", number, games)
        yield from self._evaluation("after", None, self.plan.games)
        self._see(PhaseStarted("shutdown"))
        self.end = self.now

    def _evaluation(self, label: str, step: int | None, games: int) -> Iterator[float]:
        if not games:
            return
        self._see(PhaseStarted("evaluation", step))
        self._see(*(GroupStarted(game, "s", 1, "u", 0, "eval") for game in range(games)))
        for _ in range(int(2 * FIRST)):
            yield self._passes(0.5)
        for game in range(games):
            self._see(GroupFinished(game, 0.0, "complete", "eval"))
            if game + 1 < games:
                yield self._passes(GAME)
        yield self.now
        self._see(Evaluated(label, "u", 0.0, 0.1, games, 0.0))

    def _see(self, *events: object) -> None:
        for event in events:
            self.state.apply(event, self.now)

    def _passes(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def told(training: Training) -> list[tuple[float, int, Eta | None]]:
    return [(now, training.state.step, training.state.eta(now)) for now in training.moments()]


@pytest.mark.parametrize("every", [0, 2, 3])
@pytest.mark.parametrize("games", [0, 40])
def test_a_run_that_keeps_its_pace_ends_when_it_was_told_to(every: int, games: int) -> None:
    """From the first step on, within steps and within evaluations. An evaluation of another size
    than the one measured is the only thing that is not known to the second."""
    plan = DisplayPlan("train x", games=games, games_during=40, evaluate_every=every)
    training = Training(plan)
    for now, step, eta in told(training):
        if step == 0:
            assert eta is None
        elif games or not every:
            assert eta is not None
            assert not eta.unmeasured
            assert now + eta.seconds == pytest.approx(training.end)


def test_an_estimate_never_grows_while_all_goes_as_measured() -> None:
    training = Training(DisplayPlan("train x", games=40, games_during=40, evaluate_every=2))
    seconds = [eta.seconds for _, _, eta in told(training) if eta is not None]
    assert all(later <= sooner + 1e-9 for sooner, later in pairwise(seconds))
    assert seconds[0] > 100
    assert seconds[-1] == pytest.approx(0)


def test_an_evaluation_of_another_size_is_told_by_its_games() -> None:
    """40 games took 4 + 39 · 0.5 s; 10 are expected to take a quarter of that, and that is over
    before the last one has ended."""
    training = Training(DisplayPlan("train x", games=40, games_during=10, evaluate_every=6))
    moments = training.moments()
    state = training.state
    next(now for now in moments if state.step == 6)
    whole = FIRST + 39 * GAME
    assert state.eta(training.now) == Eta(STEP + whole / 4 + whole)
    next(now for now in moments if state.evaluation and state.evaluation.done == 9)
    assert state.eta(training.now) == Eta(STEP + whole)


def test_a_step_that_takes_longer_holds_the_estimate_and_never_passes_below_the_rest() -> None:
    training = Training(DisplayPlan("train x"), steps=3)
    next(now for now in training.moments() if training.state.step == 1)
    state, now = training.state, training.now
    assert [state.eta(now + late) for late in (0, 4, 10, 60)] == [
        Eta(20),
        Eta(16),
        Eta(10),
        Eta(10),
    ]


def test_a_machine_that_is_no_longer_busy_is_soon_believed() -> None:
    """Ten steps of 8 s, then ten of 1 s: the estimate is nearer to 1 s a step than the mean of all,
    which is 4.5 s, and than half of that."""
    state = RunState(DisplayPlan("train x"), 0.0)
    told = []
    for step in range(1, 21):
        seconds = {"seconds_sampling": 8.0 if step <= 10 else 1.0}
        state.apply(StepFinished(step, 100, "u", seconds), 0.0)
        eta = state.eta(0.0)
        told.append(eta.seconds / (100 - step) if eta else 0.0)
    assert told[:10] == pytest.approx([8.0] * 10)
    assert told[9:] == sorted(told[9:], reverse=True)
    assert 1 < told[-1] < 4.5 / 2


def test_what_was_not_measured_is_named_and_not_guessed() -> None:
    """A resumed run has its evaluation before behind it."""
    training = Training(DisplayPlan("train x", games=40), step=4)
    every = told(training)
    steps = [eta for _, step, eta in every if 4 < step < 7]
    assert steps[0] == Eta(20, unmeasured=True)
    assert every[0][2] is None
    last = [eta for _, _, eta in every[-5:]]
    assert all(eta is not None and not eta.unmeasured for eta in last)
    assert [*lines.etas(training.state, training.now)] == ["ETA 00:00:00"]


def test_what_is_left_out_is_said() -> None:
    training = Training(DisplayPlan("train x", games=40), step=4)
    next(now for now in training.moments() if training.state.step == 5)
    assert [*lines.etas(training.state, training.now)] == ["ETA 00:00:20 + evaluation"]


@pytest.mark.parametrize("at_once", [False, True])
def test_an_evaluation_alone_is_told_by_the_rate_at_which_games_end(at_once: bool) -> None:
    """10 at once of 20 s each, in step with each other or one after the other: 2 s a game, once
    the first ones, which began together, are left out."""
    state = RunState(DisplayPlan("eval x", games=60, policies=1), 0.0)
    state.apply(PhaseStarted("evaluation"), 0.0)
    for game in range(60):
        now = 20.0 * (1 + game // 10) + (0 if at_once else 2 * (game % 10))
        state.apply(GroupFinished(game, 0.0, "complete", "eval"), now)
        eta = state.eta(now)
        if game < 9:
            assert eta is None
        if game >= 19 and (game % 10 == 9 or not at_once):
            assert eta == Eta(pytest.approx(2 * (59 - game)))


def test_a_stop_request_ends_what_was_planned() -> None:
    training = Training(DisplayPlan("train x", games=40))
    next(now for now in training.moments() if training.state.step == 2)
    assert training.state.eta(training.now) is not None
    training.state.stopping = Stopping(1, "SIGTERM", training.now)
    assert training.state.eta(training.now) is None


def test_a_watcher_tells_what_the_run_tells_and_nothing_of_its_own() -> None:
    training = Training(DisplayPlan("train x", games=40, games_during=10, evaluate_every=2))
    watcher = RunState(DisplayPlan("watch train x", watched=True), 0.0)
    watcher.apply(RunStarted("r", "f", "x", 7, "s", {}), 0.0)
    for number, now in enumerate(training.moments()):
        record = json.loads(json.dumps(to_record(training.state, now)))
        if training.state.step and not watcher.step:
            watcher.apply(StepFinished(1, 7, "u/v", {}), 1.0)
            assert watcher.eta(2.0) is None
        restore(watcher, record, 5000.0 + number)
        assert watcher.eta(5000.0 + number) == training.state.eta(now)
    assert watcher.told_eta == Eta(pytest.approx(0))
