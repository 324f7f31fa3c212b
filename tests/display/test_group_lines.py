"""Lines of groups stand below each other like a table."""

import pytest

from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.rollout.events import GroupFinished, GroupStarted, MemberFinished
from mtrl_cli.training.events import RunFinished, RunStarted
from tests.display.test_presenters import FOLDER, RUN, Watched

REWARDS = (-1.0, 1.0, 0.0, -0.5, 1.0, -1.0)


def played(watched: Watched, *groups: int) -> None:
    for group in groups:
        watched.see(GroupStarted(group, f"bj/{10 ** (group % 4)}", len(REWARDS), "u/v", 0))
        for member, reward in enumerate(REWARDS):
            watched.see(MemberFinished(group, member, "done", reward, 1, 10, 0))
        watched.see(GroupFinished(group, 0.0, "complete"))


@pytest.mark.parametrize(
    "plan",
    [
        DisplayPlan("rollout blackjack", keep_groups=True, total_groups=1000),
        DisplayPlan("train blackjack", groups_per_step=8),
    ],
)
def test_numbers_and_names_keep_their_columns(plan: DisplayPlan) -> None:
    watched = Watched(80, plan)
    watched.see(RunStarted(RUN, FOLDER, "blackjack", 125, "local", {}))
    played(watched, 3, 9, 10, 998, 999)
    above = [line for line in watched.frame() if line.startswith("group") and "|" in line]
    assert [line.split("|")[0] for line in above] == [
        "group   3 bj/1000 ",
        "group   9 bj/10   ",
        "group  10 bj/100  ",
        "group 998 bj/100  ",
        "group 999 bj/1000 ",
    ]


def test_a_number_of_a_run_of_unknown_length_stands_as_it_is() -> None:
    watched = Watched(80, DisplayPlan("watch rollout blackjack", watched=True, keep_groups=True))
    played(watched, 3)
    assert watched.frame()[0].startswith("group 3 bj/1000 | ")


def test_the_rewards_of_members_keep_their_columns_where_they_are_broken() -> None:
    watched = Watched(60, DisplayPlan("rollout blackjack", keep_groups=True))
    played(watched, 0, 1)
    watched.see(RunFinished(RUN, FOLDER, "finished", None, 0, 12, 0, None, None, None, {}))
    watched.output.truncate(0)
    watched.presenter.close()
    told = watched.text.splitlines()
    (head,) = (line for line in told if line.endswith("rewards and ends"))
    first, second, third, *_ = (line for line in told if line.endswith("done"))
    column = head.index("rewards and ends")
    assert first[column:] == "-1.00 done   1.00 done"
    assert second == " " * column + " 0.00 done  -0.50 done"
    assert third.startswith(" " * column + " 1.00 done")
