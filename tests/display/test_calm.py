"""Between two steps the table stays where it is: what has ended is dim, and never looks played."""

import json

from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.snapshot import restore, to_record
from mtrl_cli.rollout.events import GroupFinished, GroupStarted, MemberFinished, TurnSampled
from mtrl_cli.training.events import PhaseStarted, StepFinished
from tests.display.test_presenters import Watched

PER_STEP, HEAD = 5, 7
"""Groups of a step, and the lines above the table's rows."""


def sampled(watched: Watched, step: int) -> range:
    """All groups of a step begin, and have one member that has ended."""
    groups = range(step * PER_STEP, (step + 1) * PER_STEP)
    watched.see(PhaseStarted("sampling", step))
    watched.see(*(GroupStarted(group, f"bj-{group}", 1, "u/v", step) for group in groups))
    watched.see(*(TurnSampled(group, 0, 0, 10) for group in groups))
    return groups


def ended(watched: Watched, group: int, outcome: str = "complete") -> None:
    watched.see(MemberFinished(group, 0, "done", 1.0, 1, 10, 0))
    watched.see(GroupFinished(group, 1.0, outcome))


def training(width: int = 80, **plan: bool) -> Watched:
    """Of so many groups a step that none is told above the table when it ends."""
    return Watched(width, DisplayPlan("train blackjack", groups_per_step=20, **plan))


def rows(frame: list[str]) -> list[tuple[str, str]]:
    """The number and the phase of each group in the table."""
    at = next(n for n, line in enumerate(frame) if line.startswith("group  task"))
    found = [line.split() for line in frame[at + 1 :] if "blackjack" in line or "bj-" in line]
    return [(cells[0], cells[-1]) for cells in found]


def test_the_live_area_keeps_its_height_from_the_first_step_to_the_last_evaluation() -> None:
    watched = training()
    heights = []
    for step in range(3):
        groups = sampled(watched, step)
        heights.append(len(watched.frame()))
        for group in groups:
            ended(watched, group)
            heights.append(len(watched.frame()))
        for phase in ("training", "publishing"):
            watched.see(PhaseStarted(phase, step))
            heights.append(len(watched.frame()))
        watched.see(StepFinished(step + 1, 3, f"u/step-{step + 1}", {"reward": 0.1}))
        watched.frame()
        heights.append(len(watched.frame()))
    watched.see(PhaseStarted("evaluation"))
    heights.append(len(watched.frame()))
    assert set(heights) == {HEAD + PER_STEP}


def test_what_has_ended_is_dim_and_goes_when_others_begin() -> None:
    watched = training()
    for group in sampled(watched, 0):
        watched.frame()
        ended(watched, group, "env_failure" if group == 3 else "complete")
    watched.clock.now += 30
    watched.frame()
    assert "\x1b[2m" in next(line for line in watched.text.splitlines() if "bj-4" in line)
    frame = watched.frame()
    assert [phase for _, phase in rows(frame)] == ["done", "done", "done", "ended", "done"]
    assert not any("30s" in line for line in frame[HEAD:])
    watched.see(PhaseStarted("sampling", 1), GroupStarted(5, "bj-5", 1, "u/v", 1))
    assert watched.frame()[-1] == "1 group starting"
    watched.see(TurnSampled(5, 0, 0, 10))
    expected = [("1", "done"), ("2", "done"), ("3", "ended"), ("4", "done"), ("5", "rolling")]
    assert rows(watched.frame()) == expected
    sampled(watched, 1)
    assert rows(watched.frame()) == [(str(group), "rolling") for group in range(5, 10)]


def test_a_wide_screen_tells_why_a_group_has_ended() -> None:
    watched = training(140)
    sampled(watched, 0)
    watched.frame()
    ended(watched, 0, "env_failure")
    assert next(line for line in watched.frame() if "bj-0" in line).endswith("environment failed")


def test_a_watcher_shows_the_same() -> None:
    told, heard = training(), training(watched=True)
    for step in range(2):
        for group in sampled(told, step):
            told.frame()
            _hear(heard, told)
            ended(told, group)
        _hear(heard, told)
        assert rows(heard.frame()) == rows(told.frame())


def _hear(heard: Watched, told: Watched) -> None:
    record = json.loads(json.dumps(to_record(told.presenter.state, told.clock.now)))
    restore(heard.presenter.state, record, heard.clock.now)
    heard.frame()


def test_where_there_is_no_room_what_is_in_flight_comes_first() -> None:
    """The terminal has room for 8."""
    watched = training()
    for step in range(2):
        groups = sampled(watched, step)
    ended(watched, 0)
    assert rows(watched.frame()) == [(str(group), "rolling") for group in range(1, 9)]
    ended(watched, groups[0])
    ended(watched, groups[1])
    found = [(str(group), "rolling") for group in (1, 2, 3, 4, 7, 8, 9)]
    assert rows(watched.frame()) == sorted([*found, ("6", "done")], key=lambda it: int(it[0]))


def test_a_rollout_lists_only_what_is_played() -> None:
    watched = Watched(80, DisplayPlan("rollout blackjack", keep_groups=True, total_groups=5))
    sampled(watched, 0)
    watched.frame()
    ended(watched, 0)
    watched.frame()
    assert rows(watched.frame()) == [(str(group), "rolling") for group in range(1, 5)]
