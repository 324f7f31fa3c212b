"""What the two presenters show for the same run."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from mtrl_cli.display.lines import left_out
from mtrl_cli.display.live import LivePresenter
from mtrl_cli.display.panels import sparkline
from mtrl_cli.display.plain import PlainPresenter
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.snapshot import restore, to_record
from mtrl_cli.display.state import RunState
from mtrl_cli.display.summary import summary
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.views import Stopping
from mtrl_cli.rollout.events import (
    BorrowChanged,
    GroupFinished,
    GroupStarted,
    MemberFinished,
    TurnSampled,
)
from mtrl_cli.training.events import (
    Comparison,
    Evaluated,
    FolderMade,
    Notice,
    PhaseStarted,
    RunFinished,
    RunStarted,
    ServiceStrained,
    StepFinished,
)

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RUN, FOLDER = "20261129-122135-a7aa", "runs/20261129-122135-a7aa"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A presenter with a clock and an output of its own."""

    def __init__(self, width: int | None, plan: DisplayPlan | None = None, **options: bool) -> None:
        self.clock, self.output = Clock(), io.StringIO()
        plan = plan or DisplayPlan(
            "train blackjack", games=6000, concurrency=64, figures=("kl", "parity")
        )
        state, screen = RunState(plan, self.clock.now), Screen(self.output)
        redact: Callable[[str], str] = lambda text: text.replace("sk-secret", "***")  # noqa: E731
        self.presenter: LivePresenter | PlainPresenter
        if width is None:
            self.presenter = PlainPresenter(
                state, screen, redact=redact, clock=self.clock, wall=lambda: "12:17:40"
            )
        else:
            self.presenter = LivePresenter(
                state, screen, redact=redact, clock=self.clock, size=(width, 16), **options
            )

    def see(self, *events: object) -> None:
        for event in events:
            self.presenter.observe(event)

    def frame(self) -> list[str]:
        """What one drawing puts on the screen."""
        self.output.seek(0)
        self.output.truncate()
        self.presenter.tick()
        drawn = ESCAPES.sub("", self.output.getvalue()).replace("\r", "")
        return [line.rstrip() for line in drawn.splitlines()]

    @property
    def text(self) -> str:
        return self.output.getvalue()


def begun(watched: Watched, groups: int = 3, name: str = "bj-seed") -> Watched:
    watched.see(
        RunStarted(RUN, FOLDER, "blackjack", 50, "local", {"random": -0.39}),
        PhaseStarted("sampling", 11),
        *(GroupStarted(group, f"{name}-{group}", 8, "u/v11", 11) for group in range(groups)),
        TurnSampled(0, 0, 0, 200),
        MemberFinished(0, 0, "done", 1.0, 3, 300, 0),
        MemberFinished(0, 1, "done", 0.0, 3, 300, 0),
    )
    return watched


def stepped(watched: Watched, reward: float = 0.463) -> Watched:
    watched.clock.now += 14.2
    watched.see(*(GroupFinished(group, 0.5, "complete") for group in range(3)))
    watched.see(
        StepFinished(
            12,
            50,
            "mtrl://runs/a7aa/a1/step-000012",
            {
                "reward": reward,
                "kl": 0.012,
                "groups": 16,
                "groups_trained": 13,
                "skipped/constant_reward": 3,
                "tokens_sampled": 1420.0,
                "seconds_sampling": 1.0,
                "seconds_training": 13.2,
            },
        )
    )
    return watched


@pytest.mark.parametrize("width", [80, 140])
def test_the_live_screen_fits_its_terminal(width: int) -> None:
    watched = begun(Watched(width), groups=40)
    watched.clock.now += 9
    frame = watched.frame()
    assert max(map(len, frame)) <= width
    assert len(frame) <= 16
    assert frame[0].startswith("mtrl train blackjack  run a7aa  policy v11")
    assert frame[0].endswith("00:00:09")
    assert frame[2] == "Ctrl-C: let issued work settle, then stop"
    assert frame[4].startswith("busy 64/64  gen 22 tok/s  traj 13/min  tokens 200")
    assert frame[6].split()[:4] == ["group", "task", "policy", "done"]
    assert "2/8 ██░░░░░░    0.50" in frame[7]
    assert frame[-1] == "39 more groups starting"
    watched.see(*(TurnSampled(group, 0, 0, 1) for group in range(30)))
    frame = watched.frame()
    assert len(frame) <= 16
    assert frame[-1] == "22 more groups, 10 starting"


def test_a_wide_screen_has_more_columns() -> None:
    wide, narrow = begun(Watched(140)), begun(Watched(80))
    wide.see(MemberFinished(1, 0, "env_failure", None, 0, 0, 0, "sandbox gone"))
    frame = wide.frame()
    assert all(name in frame[6] for name in ("std", "turns", "note"))
    assert frame[8].endswith("1 retried: sandbox gone")
    assert "std" not in narrow.frame()[6]


def test_the_stop_message_stands_at_the_top() -> None:
    watched = begun(Watched(80))
    watched.presenter.stopping(Stopping(1, "Ctrl-C", watched.clock.now))
    watched.clock.now += 14
    told = "STOPPING (Ctrl-C): 3 groups settle, none starts, 46s left.  Again: drop them"
    assert watched.frame()[2] == told
    watched.presenter.stopping(Stopping(2, "Ctrl-C", watched.clock.now))
    assert watched.frame()[2].startswith("STOPPING NOW (Ctrl-C)")


def test_a_finished_step_scrolls_away_above_and_its_groups_go() -> None:
    watched = stepped(begun(Watched(80)))
    frame = watched.frame()
    assert frame[0] == "group 0 bj-seed-0 | v11 | 2/8 | reward  0.50 |    200 tokens | 14s"
    assert frame[2] == "group 2 bj-seed-2 | v11 | 0/8 | reward     - |      0 tokens | 14s"
    assert (
        frame[3] == "step 12/50 | 14.2s | reward  0.463 | passed    - | trained 13/16 | kl  0.0120"
    )
    assert len(frame[3]) <= 80
    assert frame[4].startswith("mtrl train")
    assert not any(line.startswith("group") for line in frame[5:])
    assert watched.frame()[0].startswith("mtrl train")


def test_where_a_step_has_many_groups_its_line_stands_for_them() -> None:
    watched = begun(Watched(80, DisplayPlan("train blackjack", groups_per_step=20)))
    figures = {"reward": 0.463, "failed_episodes": 8.0, "skipped/env_failure": 1.0}
    watched.see(
        GroupFinished(0, 0.5, "complete"),
        GroupFinished(1, None, "env_failure"),
        StepFinished(12, 50, "u/v12", figures),
    )
    frame = watched.frame()
    assert frame[0].startswith("step 12/50 | ")
    assert "failed 8 | environment failed 1" in f"{frame[0]} {frame[1].strip()}"
    assert not any("bj-seed-1" in line for line in frame)


def test_an_evaluation_is_a_bar_and_no_table() -> None:
    watched = Watched(80)
    watched.see(PhaseStarted("evaluation"))
    for game in range(1234):
        watched.see(
            GroupStarted(game, "seed", 1, "base", 0, "eval"),
            MemberFinished(game, 0, "done", -0.5, 2, 60, 0, stream="eval"),
            GroupFinished(game, -0.5, "complete", "eval"),
        )
    frame = watched.frame()
    assert frame[1].startswith("evaluation before: 1,234/6,000 games, -0.500 so far ━")
    assert frame[1].endswith("21%")
    assert len(frame) == 5


def test_a_terminal_without_unicode_gets_ascii() -> None:
    watched = stepped(begun(Watched(80, unicode=False)))
    watched.see(GroupStarted(99, "s", 8, "u/v", 12))
    drawn = "".join(watched.frame()[1:])
    assert drawn.isascii()


def test_the_screen_is_given_back() -> None:
    watched = begun(Watched(80))
    watched.frame()
    watched.presenter.close()
    assert "\x1b[?25h" in watched.text
    watched.presenter.close()
    watched.presenter.tick()


@pytest.mark.parametrize("width", [None, 140])
def test_foreign_text_cannot_steer_the_terminal_or_show_a_secret(width: int | None) -> None:
    hostile = "\x1b]0;owned\x07\x9b2J\u202esk-secret"
    watched = begun(Watched(width), name=hostile)
    watched.see(
        MemberFinished(0, 2, "env_failure", None, 0, 0, 0, hostile),
        Evaluated(hostile, hostile, 0.0, 0.0, 1, 0.0),
        StepFinished(1, 50, f"u/{hostile}", {"skipped/\x1b[31m": 1.0, "groups": 1.0}),
    )
    watched.presenter.tick()
    watched.see(_finished(hostile))
    watched.presenter.close()
    for wrong in ("\x1b]0;", "\x07", "\x9b", "\u202e", "\x1b[31m", "sk-secret"):
        assert wrong not in watched.text


def _finished(text: str) -> RunFinished:
    return RunFinished(
        text, text, text, text, 1, 1, 1, text, None, None, {text: 1}, quarantined=(text,)
    )


def test_plain_lines_say_what_ended() -> None:
    watched = stepped(begun(Watched(None)))
    watched.see(Evaluated("after", "u", -0.06, 0.012, 6000, 0.003))
    watched.see(Evaluated("after", "u", -0.06, 0.012, 34, 0.003, failed=16))
    watched.presenter.stopping(Stopping(1, "SIGTERM", watched.clock.now))
    assert watched.text.splitlines() == [
        f"12:17:40 INFO  run {RUN} in {FOLDER}",
        "12:17:40 INFO  step 12/50 | 14.2s | reward  0.463 | passed    - | trained 13/16"
        " | kl  0.0120 | parity       - | gen  1.4k tok/s | tokens   200 | entropy      -"
        " | loss       - | eta        - | step-000012 | equal rewards 3",
        "12:17:40 INFO  evaluation after: -0.060 ± 0.012 over 6,000 games",
        "12:17:40 INFO  evaluation after: -0.060 ± 0.012 over 34 games (16 failed)",
        "12:17:40 WARN  stopping (SIGTERM): nothing new starts; issued work settles"
        " (at most 60s).  Again: drop them",
    ]


def test_plain_lines_show_signs_of_life() -> None:
    watched = begun(Watched(None))
    for _ in range(300):
        watched.clock.now += 0.5
        watched.presenter.tick()
    alive = [line for line in watched.text.splitlines() if "alive" in line]
    assert alive == [
        "12:17:40 INFO  alive: sampling for 00:01:00, 3 groups in flight",
        "12:17:40 INFO  alive: sampling for 00:02:00, 3 groups in flight",
    ]


def test_plain_lines_report_an_evaluations_progress_now_and_then() -> None:
    watched = Watched(None)
    watched.see(PhaseStarted("evaluation"))
    for game in range(100):
        watched.see(GroupFinished(game, 0.0, "complete", "eval"))
        watched.clock.now += 0.5
        watched.presenter.tick()
    progress = [line for line in watched.text.splitlines() if "/6,000 games" in line]
    assert len(progress) == 6


def test_a_summary_without_an_evaluation_says_what_is_known() -> None:
    watched = Watched(None)
    watched.see(
        RunFinished(RUN, FOLDER, "failed", "server gone", 3, 24, 5000, None, None, None, {})
    )
    watched.presenter.close()
    watched.presenter.close()
    assert watched.text.splitlines() == [
        "failed: train blackjack in 00:00:00: server gone",
        "episodes   24, 5.0k tokens sampled",
        f"run        {FOLDER}",
        "report     mtrl report a7aa",
    ]


def test_the_tokens_of_evaluations_are_told_beside_those_of_the_steps() -> None:
    before = Evaluated("before", "p", -0.4, 0.01, 6000, 0.0)
    watched = Watched(None)
    watched.see(PhaseStarted("evaluation"), *(TurnSampled(0, 0, turn, 4000) for turn in range(3)))
    watched.see(PhaseStarted("sampling", 1), TurnSampled(0, 0, 0, 5000))
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 1, 1, 5000, None, before, None, {}))
    watched.presenter.close()
    assert "episodes   1, 5.0k tokens sampled (17.0k with evaluations)\n" in watched.text


def test_a_summary_of_steps_without_an_evaluation_tells_their_reward() -> None:
    watched = Watched(None)
    watched.see(*(StepFinished(n, 12, "p", {"reward": n / 10}) for n in range(1, 13)))
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 12, 24, 50, None, None, None, {}))
    watched.presenter.close()
    assert "reward     0.750 over the last 10 steps; nothing was evaluated" in watched.text


@pytest.mark.parametrize("width", [None, 140])
def test_a_notice_is_shown_once_and_cannot_steer_the_terminal(width: int | None) -> None:
    watched = Watched(width)
    watched.see(Notice("two packages own \x1b[2Jone name"))
    printed = watched.output.getvalue()  # plain lines print at once, a live screen when it draws
    shown = "\n".join([printed, *watched.frame()])
    assert shown.count("two packages own") == 1
    assert "\x1b[2J" not in shown.replace("\x1b[2K", "")


@pytest.mark.parametrize("width", [None, 140])
def test_the_audits_figures_stand_in_every_step_and_in_the_summary(width: int | None) -> None:
    watched = begun(Watched(width))
    for step, most in ((1, 2e-6), (2, 4e-6), (3, 3e-6)):
        metrics = {"reward": -0.00001, "parity_max": most, "parity_mean": most / 10}
        watched.see(StepFinished(step, 50, f"u/step-{step}", metrics))
        watched.presenter.tick()
    assert " | parity   4e-06" in ESCAPES.sub("", watched.text)
    if width is not None:
        watched.see(PhaseStarted("training", 3))
        assert any("parity 3e-06" in line for line in watched.frame())
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 3, 24, 5000, None, None, None, {}))
    watched.presenter.close()
    assert (
        "audit      sampler and trainer differ by 4e-06 at most, 3e-07 in the mean of 3 steps"
        in watched.text
    )


def test_games_that_failed_are_told_beside_the_mean() -> None:
    watched = begun(Watched(None))
    before = Evaluated("before", "u", -1.0, 0.0, 34, 0.0, failed=16)
    after = Evaluated("after", "v", -0.5, 0.1, 50, 0.0)
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 3, 24, 5000, None, before, after, {}))
    watched.presenter.close()
    assert (
        "reward     before -1.000 ± 0.000 (16 failed) → after -0.500 ± 0.100 (+0.500)"
        " (± standard error, 34 and 50 games)" in watched.text
    )
    assert (
        "NOTE       games that failed are left out: before 16 of 50, after 0 of 50; a policy that"
        " fails where it would have lost looks better than it is" in watched.text
    )


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (0, 0, None),
        (5, 5, None),  # 1 % of 500
        (5, 6, "before 5 of 500, after 6 of 500;"),
        (0, 78, "before 0 of 500, after 78 of 500;"),
    ],
)
def test_a_gain_from_which_games_are_left_out_is_noted(
    before: int, after: int, says: str | None
) -> None:
    told = left_out([("before", before, 500 - before), ("after", after, 500 - after)])
    assert (told is None) if says is None else (told is not None and says in told)


def test_what_an_evaluation_leaves_out_is_noted_with_both_policies() -> None:
    watched = begun(Watched(None))
    rival = Evaluated("rival", "u/base", -1.0, 0.0, 34, 0.0, failed=16)
    games = Evaluated("eval", "u/step-000003", -0.5, 0.1, 50, 0.0, temperature=1.0)
    ended = RunFinished(RUN, FOLDER, "finished", None, 0, 84, 5000, None, rival, None, {})
    watched.see(replace(ended, evaluated=games))
    watched.presenter.close()
    assert "left out: step-000003 0 of 50, base 16 of 50; a policy" in watched.text


@pytest.mark.parametrize(
    ("folder", "option"), [(FOLDER, ""), (f"else where/{RUN}", " --runs-dir 'else where'")]
)
def test_failed_episodes_are_counted_with_the_command_that_names_them(
    folder: str, option: str
) -> None:
    watched = begun(Watched(None))
    ended = RunFinished(RUN, folder, "finished", None, 3, 24, 5000, None, None, None, {}, failed=2)
    watched.see(ended)
    watched.presenter.close()
    told = "failed     2 of 26 episodes (7.7%), played again or left out; named by:"
    assert f"{told}\n           mtrl trajectory a7aa{option}\n" in watched.text


@pytest.mark.parametrize("width", [80, 140])
def test_the_heads_figures_stand_whole_or_not_at_all(width: int) -> None:
    """Nothing is cut in the middle; what matters most stands first."""
    watched = begun(Watched(width))
    figures = {"pass_rate": 0.41, "kl": 0.012, "parity_max": 3e-6, "staleness": 0.4}
    more = {"staleness_max": 1.0, "invalid_calls": 0.03, "entropy": 0.62, "loss": -0.0041}
    for step in range(1, 21):
        metrics = {"reward": step / 100, **figures, **more}
        watched.see(StepFinished(step, 50, f"u/step-{step}", metrics))
        watched.frame()
    watched.see(
        MemberFinished(1, 0, "env_failure", None, 0, 0, 0, "sandbox gone"),
        ServiceStrained(2, "HTTP 429: slow down"),
        BorrowChanged("a", "sandbox", "held"),
        BorrowChanged("b", "server_model", "held"),
    )
    head = watched.frame()[:5]
    first = f"reward 0.200 {sparkline([n / 100 for n in range(1, 21)], '▁▂▃▄▅▆▇█')}"
    assert first.endswith("▇██")
    assert head[3].startswith(f"{first}  last 10 0.155 (+0.100)  passed 41%")
    assert head[4].startswith("busy 22/64  gen 200 tok/s  traj 120/min  tokens 200  stale 0.4/1")
    wide = width == 140
    assert ("loss -0.0041" in head[3]) == wide
    assert ("errors 33.3%  retries 3  sandboxes 1" in head[4]) == wide
    assert "server_model" not in head[4]
    assert all(len(line) <= width for line in head)
    assert not any(line.endswith("…") for line in head)


def test_groups_of_later_steps_stay_when_a_step_ends() -> None:
    watched = begun(Watched(80))
    watched.see(StepFinished(1, 50, "u/step-1", {"reward": 0.0}))
    watched.see(TurnSampled(2, 0, 0, 1))
    *_, first, third, second = watched.frame()
    assert (first.split()[0], third.split()[0]) == ("0", "2")
    assert second == "1 more group starting"


def test_where_no_group_has_begun_there_is_no_table() -> None:
    watched = Watched(80)
    watched.see(*(GroupStarted(group, "seed", 8, "u/v11", 11) for group in range(20)))
    assert watched.frame()[5:] == ["", "20 groups starting"]


def test_games_of_an_evaluation_count_for_the_rate() -> None:
    watched = Watched(80)
    watched.see(PhaseStarted("evaluation"))
    watched.clock.now += 60
    watched.see(
        *(MemberFinished(game, 0, "done", -0.5, 2, 60, 0, stream="eval") for game in range(30))
    )
    assert "  traj 30/min  " in watched.frame()[4]


def test_a_run_that_waits_for_its_server_says_so_with_the_servers_words() -> None:
    live, plain = begun(Watched(80)), begun(Watched(None))
    for watched in (live, plain):
        watched.see(ServiceStrained(3, "HTTP 429: slow\x1b[2J down"))
    assert live.frame()[2] == "waiting for the server: HTTP 429: slow\\x1b[2J down"
    for _ in range(121):
        plain.clock.now += 0.5
        plain.presenter.tick()
    alive = "alive: sampling for 00:01:00, 3 groups in flight; waiting for the server: HTTP 429"
    assert alive in plain.text
    live.see(ServiceStrained(3, None))
    assert live.frame()[2].startswith("Ctrl-C:")


def test_a_watched_run_says_that_ctrl_c_leaves_it_alone() -> None:
    watched = Watched(80, DisplayPlan("watch train blackjack", watched=True))
    assert watched.frame()[2] == "q or Ctrl-C: stop watching; the run goes on"


def test_the_moment_can_be_told_to_another_process() -> None:
    told, heard = begun(Watched(140)), Watched(140)
    told.see(
        MemberFinished(1, 0, "env_failure", None, 0, 0, 0, "sandbox gone"),
        ServiceStrained(2, "HTTP 429: slow down"),
        BorrowChanged("a", "sandbox", "held"),
    )
    told.clock.now += 9
    heard.clock.now += 9
    record = json.loads(json.dumps(to_record(told.presenter.state, told.clock.now)))
    heard.see(RunStarted(RUN, FOLDER, "blackjack", 50, "local", {"random": -0.39}))
    restore(heard.presenter.state, record, heard.clock.now)
    assert heard.frame()[1:] == told.frame()[1:]
    told.see(PhaseStarted("evaluation"), GroupStarted(9, "s", 1, "base", 0, "eval"))
    told.presenter.stopping(Stopping(1, "SIGTERM", told.clock.now))
    record = json.loads(json.dumps(to_record(told.presenter.state, told.clock.now)))
    restore(heard.presenter.state, record, heard.clock.now)
    assert heard.frame()[1:] == told.frame()[1:]


def test_the_moment_tells_what_a_watcher_cannot_know_of_the_plan() -> None:
    """A game that waits for a place has begun, but is not busy."""
    told, heard = begun(Watched(140)), Watched(140, DisplayPlan("train blackjack", watched=True))
    told.see(
        PhaseStarted("evaluation"), *(GroupStarted(n, "s", 1, "b", 0, "eval") for n in range(3591))
    )
    record = json.loads(json.dumps(to_record(told.presenter.state, told.clock.now)))
    restore(heard.presenter.state, record, heard.clock.now)
    assert any(line.startswith("busy 64/64 ") for line in told.frame())
    assert any(line.startswith("busy 64/64 ") for line in heard.frame())


def test_groups_that_a_moment_has_no_room_for_are_busy_too() -> None:
    plan = DisplayPlan("rollout blackjack", concurrency=1000)
    told, heard = begun(Watched(140, plan), groups=300), Watched(140)
    record = json.loads(json.dumps(to_record(told.presenter.state, told.clock.now)))
    restore(heard.presenter.state, record, heard.clock.now)
    assert heard.presenter.state.busy == told.presenter.state.busy > 200 * 8


def test_throughput_of_a_step_whose_groups_were_sampled_earlier() -> None:
    figures = {"tokens_sampled": 1000.0, "seconds_sampling": 0.0001, "seconds_training": 1.9999}
    watched = begun(Watched(None))
    watched.see(StepFinished(1, 50, "u/1", {**figures, "staleness": 1.0, "staleness_max": 1.0}))
    assert "| gen   500 tok/s |" in watched.text
    watched.see(StepFinished(2, 50, "u/2", {**figures, "seconds_sampling": 2.0}))
    assert watched.text.count("| gen   500 tok/s |") == 2


def test_throughput_of_a_step_whose_groups_were_sampled_during_an_evaluation() -> None:
    """The last seconds tell it: no step samples 25 million tokens a second."""
    figures = {"tokens_sampled": 1488.0, "seconds_sampling": 6e-5, "seconds_policy": 0.47}
    watched = Watched(None)
    watched.see(PhaseStarted("evaluation"), TurnSampled(0, 0, 0, 3000))
    watched.clock.now += 10
    watched.see(PhaseStarted("sampling", 5), StepFinished(6, 50, "u/6", figures))
    assert "| gen   300 tok/s |" in watched.text


def ended_with(policy: str) -> str:
    watched = stepped(begun(Watched(None)))
    skipped = {"constant_reward": 48}
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 12, 96, 1, policy, None, None, skipped))
    watched.presenter.close()
    return watched.text


def test_an_evaluation_that_was_cut_off_is_told_beside_the_episodes() -> None:
    watched = Watched(None, DisplayPlan("train blackjack", games=500))
    watched.see(
        PhaseStarted("evaluation"),
        *(GroupStarted(n, "s", 1, "base", 0, "eval") for n in range(2)),
        GroupFinished(0, 1.0, "complete", "eval"),
        PhaseStarted("sampling", 0),
        PhaseStarted("shutdown"),
        RunFinished(RUN, FOLDER, "cancelled", "SIGINT", 0, 0, 0, None, None, None, {}),
    )
    watched.presenter.close()
    told = [" ".join(line.split()) for line in watched.text.splitlines()]
    at = told.index("episodes 0, 0 tokens sampled")
    assert told[at + 1] == "the evaluation was cut off after 1 of 500 games"


def test_mtrl_eval_names_its_policies() -> None:
    watched = Watched(None, DisplayPlan("eval blackjack", games=6000, policies=2))
    watched.see(PhaseStarted("evaluation"))
    versus = Comparison("base://mtrl-tiny", "rival", 1, 0, 0.25, None, None, 1, 0, 0)
    watched.see(
        Evaluated("rival", "base://mtrl-tiny", -0.5, 0.012, 6000, 0.1),
        Evaluated("eval", "tinker://m/w/step-000150", -0.25, 0.012, 6000, 0.0, versus=versus),
    )
    told = [line.removeprefix("12:17:40 INFO  ") for line in watched.text.splitlines()]
    assert told == [
        "evaluation: 0/12,000 games",
        "evaluation of mtrl-tiny: -0.500 ± 0.012 over 6,000 games",
        "evaluation of step-000150: -0.250 ± 0.012 over 6,000 games, +0.250 against mtrl-tiny",
    ]


@pytest.mark.parametrize(
    ("folder", "play", "command"),
    [
        (FOLDER, "mtrl rollout", "mtrl rollout"),
        (FOLDER, None, f"mtrl rollout conf={FOLDER}"),
        (f"/data/{RUN}", None, f"mtrl rollout conf=/data/{RUN} run.dir=/data"),
        (RUN, None, f"mtrl rollout conf=./{RUN} run.dir=."),
    ],
)
def test_what_was_trained_is_played_by_the_name_of_its_run(
    folder: str, play: str | None, command: str
) -> None:
    state = RunState(DisplayPlan("train blackjack"), 0.0)
    state.apply(replace(_finished("s"), folder=folder, policy="u/v12"), 0.0)
    told = summary(state, 0.0, play)
    assert told[-4] == f"play it    {command} policy=a7aa@last --show 1"
    assert told[-3].startswith("report     mtrl report a7aa")


def test_a_run_that_has_trained_nothing_says_so() -> None:
    told = "NOTE       nothing was trained (no group's rewards differed): the policy is unchanged"
    assert told in ended_with("u/v11").splitlines()
    assert "nothing was trained" not in ended_with("u/v12")


def test_where_a_run_is_and_where_it_goes_on_is_said_before_anything_starts() -> None:
    watched = Watched(None)
    watched.see(FolderMade(RUN, FOLDER))
    told = f"12:17:40 INFO  run {RUN} in {FOLDER}"
    assert watched.text == f"{told}; starting server and environments\n"
    live = Watched(80)
    live.see(FolderMade(RUN, FOLDER, attempt=2, step=4))
    frame = live.frame()
    assert frame[:2] == [f"run {RUN} in {FOLDER}: attempt 2 goes on after", "    step 4"]
    assert frame[2].startswith("mtrl train blackjack  run a7aa")
    again = Watched(None)
    again.see(FolderMade(RUN, FOLDER, attempt=2, step=4))
    assert again.text.startswith(f"{told}: attempt 2 goes on after step 4; starting")
    anew = Watched(None)
    anew.see(FolderMade(RUN, FOLDER, attempt=2))
    assert "attempt 2 goes on at the beginning: no later step has a training state" in anew.text


def test_a_run_without_a_step_offers_no_policy_to_play() -> None:
    watched = begun(Watched(None))
    watched.see(RunFinished(RUN, FOLDER, "cancelled", None, 0, 0, 0, "u/v0", None, None, {}))
    watched.presenter.close()
    assert "play it" not in watched.text


@pytest.mark.parametrize(("behind", "of"), [(0, ""), (4, " of this attempt")])
def test_the_audits_of_a_resumed_run_are_said_to_be_the_attempts(behind: int, of: str) -> None:
    watched = Watched(None)
    watched.see(
        RunStarted(RUN, FOLDER, "blackjack", 50, "local", {}, behind),
        StepFinished(behind + 1, 50, "u/p", {"parity_max": 2e-6, "parity_mean": 2e-7}),
        RunFinished(RUN, FOLDER, "finished", None, 3, 24, 5000, None, None, None, {}),
    )
    watched.presenter.close()
    assert f" 2e-07 in the mean of 1 step{of}\n" in watched.text


def test_a_rollout_says_how_its_first_trajectory_is_read() -> None:
    plan = DisplayPlan("rollout blackjack", keep_groups=True, readable=True)
    watched = begun(Watched(None, plan))
    for group in (2, 1):
        watched.see(MemberFinished(group, 0, "done", 1.0, 3, 300, 0))
        watched.see(GroupFinished(group, 0.5, "complete"))
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 0, 24, 5000, "base", None, None, {}))
    watched.presenter.close()
    assert watched.text.splitlines()[-1] == "read it    mtrl trajectory a7aa 1/0"


def test_a_run_lasted_as_long_as_its_folder_says() -> None:
    watched = begun(Watched(None))
    watched.clock.now += 62
    ended = RunFinished(RUN, FOLDER, "finished", None, 3, 24, 0, None, None, None, {})
    watched.see(replace(ended, seconds=55.2))
    watched.presenter.close()
    assert "finished: blackjack, 3 of 50 steps in 00:00:55\n" in watched.text
