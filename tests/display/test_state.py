"""The state of a screen, folded from events."""

import copy
import time

import pytest

from mtrl_cli.display.pace import Eta
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.state import RunState
from mtrl_cli.rollout.events import (
    BorrowChanged,
    GroupFinished,
    GroupStarted,
    MemberFinished,
    TurnSampled,
)
from mtrl_cli.training.events import (
    EVALUATION,
    Evaluated,
    EvaluationProgress,
    PhaseStarted,
    RunStarted,
    StepFinished,
)


@pytest.fixture
def state() -> RunState:
    return RunState(DisplayPlan("train blackjack", games=100, games_during=10), 0.0)


def start(state: RunState, group: int, now: float = 0.0, size: int = 4) -> None:
    state.apply(GroupStarted(group, f"seed-{group}", size, "base", 0), now)


def finish(
    state: RunState, group: int, member: int, reward: float | None, failure: str | None = None
) -> None:
    stop = "env_failure" if failure else "done"
    state.apply(MemberFinished(group, member, stop, reward, 2, 60, 0, failure), 1.0)


def step(state: RunState, number: int, now: float, reward: float = 0.0) -> None:
    state.apply(PhaseStarted("sampling", number - 1), now - 1)
    state.apply(StepFinished(number, 50, f"u/v{number}", {"reward": reward}), now)


def test_a_group_is_in_flight_until_it_finishes(state: RunState) -> None:
    start(state, 7)
    assert state.groups[7].phase == "starting"
    state.apply(TurnSampled(7, 0, 0, 25), 1.0)
    finish(state, 7, 0, 0.5)
    group = state.groups[7]
    assert (group.phase, group.done, group.tokens, group.rewards) == ("rolling", 1, 25, [0.5])
    assert state.busy == 3
    state.apply(GroupFinished(7, 0.5, "complete"), 2.0)
    assert state.groups == {}
    assert state.finished_groups == []


def test_groups_that_are_played_beside_an_evaluation_are_none_of_its_games(state: RunState) -> None:
    """With a lag the next step's groups are played meanwhile; numbers are each stream's own."""
    start(state, 7)
    state.apply(PhaseStarted("evaluation"), 0.0)
    start(state, 8)
    state.apply(GroupStarted(7, "seed", 1, "base", 0, EVALUATION), 0.0)
    state.apply(TurnSampled(7, 0, 0, 25, EVALUATION), 1.0)
    state.apply(MemberFinished(7, 0, "done", -1.0, 2, 60, 0, stream=EVALUATION), 1.0)
    finish(state, 8, 0, 1.0)
    assert state.busy == 4 + 3 + 1
    state.apply(GroupFinished(8, 1.0, "complete"), 2.0)
    assert list(state.groups) == [7]
    assert (state.groups[7].tokens, state.groups[7].done, state.episodes) == (0, 0, 1)
    assert state.evaluation is not None
    assert (state.evaluation.done, state.evaluation.mean) == (0, -1.0)
    state.apply(GroupFinished(7, -1.0, "complete", EVALUATION), 2.0)
    assert (list(state.groups), state.evaluation.done) == ([7], 1)


def test_a_failed_member_is_not_done_and_its_refill_is(state: RunState) -> None:
    start(state, 1)
    finish(state, 1, 0, None, "sandbox gone")
    assert (state.groups[1].done, state.groups[1].retries, state.failures) == (0, 1, 1)
    finish(state, 1, 0, 1.0)
    assert (state.groups[1].done, state.episodes) == (1, 1)


def test_finished_groups_are_kept_for_a_rollout() -> None:
    state = RunState(DisplayPlan("rollout blackjack", keep_groups=True), 0.0)
    start(state, 0)
    state.apply(GroupFinished(0, None, "env_failure"), 1.0)
    assert [group.outcome for group in state.finished_groups] == ["env_failure"]


def test_games_of_an_evaluation_are_counted_and_not_listed(state: RunState) -> None:
    state.apply(PhaseStarted("evaluation"), 0.0)
    for game in range(30):
        state.apply(GroupStarted(game, "seed", 1, "base", 0, EVALUATION), 0.0)
        state.apply(MemberFinished(game, 0, "done", -1.0, 2, 60, 0, stream=EVALUATION), 1.0)
        state.apply(GroupFinished(game, -1.0, "complete", EVALUATION), 1.0)
    assert state.groups == {}
    assert state.evaluation is not None
    assert (state.evaluation.label, state.evaluation.games) == ("before", 100)
    assert (state.evaluation.done, state.evaluation.mean) == (30, -1.0)
    state.apply(EvaluationProgress("before", 60, 100), 2.0)
    assert state.evaluation.done == 60
    state.apply(Evaluated("before", "base", -1.0, 0.0, 100, 0.0), 3.0)
    assert state.evaluation is None


def test_which_evaluation_it_is(state: RunState) -> None:
    state.apply(RunStarted("r", "f", "blackjack", 50, "local", {}), 0.0)
    step(state, 5, 10.0)
    state.apply(PhaseStarted("evaluation", 5), 11.0)
    assert state.evaluation is not None
    assert (state.evaluation.label, state.evaluation.games) == ("step 5", 10)
    step(state, 50, 20.0)
    state.apply(PhaseStarted("evaluation"), 21.0)
    assert (state.evaluation.label, state.evaluation.games) == ("after", 100)


def test_throughput_is_of_the_last_seconds(state: RunState) -> None:
    for second in range(100):
        state.apply(TurnSampled(0, 0, 0, 50), float(second))
    assert state.tokens == 5000
    assert state.rates.tokens_per_second(100.0) == pytest.approx(50, rel=0.1)
    assert state.rates.tokens_per_second(200.0) == 0


def test_an_evaluation_is_no_part_of_a_step(state: RunState) -> None:
    assert state.eta(0.0) is None
    state.apply(PhaseStarted("evaluation"), 0.0)
    state.apply(Evaluated("before", "base", -1.0, 0.0, 100, 0.0), 500.0)
    for number in range(1, 11):
        state.apply(PhaseStarted("sampling", number - 1), 500.0 + 10 * (number - 1))
        state.apply(StepFinished(number, 50, "u/v", {}), 500.0 + 10 * number)
    assert state.step_seconds == 10
    assert state.eta(600.0) == Eta(400 + 500)


def test_a_step_takes_as_long_as_the_run_measured_however_late_one_hears_of_it(
    state: RunState,
) -> None:
    measured = {"seconds_sampling": 0.7, "seconds_training": 0.2}
    for number in (1, 2, 3):
        state.apply(StepFinished(number, 13, "u/v", measured), 500.0)
    assert state.step_seconds == pytest.approx(0.9)
    assert state.eta(500.0) == Eta(pytest.approx(9), unmeasured=True)


def test_a_state_that_became_another_counts_for_itself(state: RunState) -> None:
    other = RunState(state.plan, 5.0)
    step(other, 3, 10.0)
    state.become(other)
    assert state.step == 3
    step(state, 4, 20.0)
    assert (state.step, other.step) == (4, 3)


def test_the_trend_compares_the_last_steps_with_those_before(state: RunState) -> None:
    for number in range(1, 21):
        step(state, number, 10.0 * number, reward=0.0 if number <= 10 else 0.25)
    assert state.trend(10) == pytest.approx(0.25)


def test_the_trend_of_a_resumed_run_goes_on(state: RunState) -> None:
    rewards = [0.0] * 10 + [1.0] * 9
    state.apply(RunStarted("r", "f", "e", 50, "local", {}, 19, rewards), 0.0)
    step(state, 20, 1.0, 1.0)
    assert state.trend(10) == 1.0
    assert len(state.rewards) == 20


def test_a_borrow_counts_until_it_is_known_to_be_returned(state: RunState) -> None:
    for borrow_state in ("requested", "held", "returning", "quarantined"):
        state.apply(BorrowChanged("a", "sandbox", borrow_state), 1.0)
        assert state.borrowed_by_kind() == {"sandbox": 1}
    state.apply(BorrowChanged("a", "sandbox", "released"), 1.0)
    assert state.borrowed_by_kind() == {}


def test_what_is_borrowed_is_named_by_the_ids_that_are_known(state: RunState) -> None:
    state.apply(BorrowChanged("m", "server_model", "requested"), 1.0)
    state.apply(BorrowChanged("a", "env", "held"), 1.0)
    assert state.borrowed_names() == ["env 1", "server_model 1"]
    state.apply(BorrowChanged("m", "server_model", "held", "model_1"), 1.0)
    assert state.borrowed_names() == ["env 1", "server_model 1 (model_1)"]
    for number in range(20):
        state.apply(BorrowChanged(f"n{number}", "server_model", "held", number), 1.0)
    assert state.borrowed_names()[1].startswith("server_model 21 (0, 1, 10, ")
    assert state.borrowed_names()[1].endswith(", 1 more)")


def test_unknown_events_are_not_for_this_screen(state: RunState) -> None:
    start(state, 0)
    before = shown(state)
    state.apply(object(), 1.0)
    assert shown(state) == before
    state.apply(TurnSampled(0, 0, 0, 20), 1.0)
    assert shown(state) != before


def shown(state: RunState) -> dict[str, object]:
    """All that it holds, as it is at this moment."""
    return {
        name: copy.deepcopy(value) for name, value in vars(state).items() if name != "_handlers"
    }


def test_a_turn_costs_little(state: RunState) -> None:
    start(state, 0)
    event = TurnSampled(0, 0, 0, 20)
    best = min(_seconds_for(state, event, 2000) for _ in range(20))
    assert best / 2000 < 5e-6


def _seconds_for(state: RunState, event: TurnSampled, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        state.apply(event, 1.0)
    return time.perf_counter() - started
