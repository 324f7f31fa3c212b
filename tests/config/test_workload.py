"""How much a run is about to play: counted by hand for small runs."""

from collections.abc import Sequence

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.rules.workload import Begun, Workload, of_training

SMALL = ("train.steps=10", "group.per_step=2", "group.size=4", "eval.games=5", "run.concurrency=50")
EVERY_THIRD = ("eval.every=3", "eval.games_during=7")


@pytest.mark.parametrize(
    ("more", "begun", "work"),
    [
        ((), Begun(), Workload(80, 8, 10, 5)),
        (("eval.games=0",), Begun(), Workload(80, 8, 0, 0)),
        (("run.concurrency=6",), Begun(), Workload(80, 6, 10, 5)),
        (("train.max_policy_lag=2",), Begun(), Workload(80, 24, 10, 5)),
        (("train.steps=2", "train.max_policy_lag=2"), Begun(), Workload(16, 16, 10, 5)),
        # after steps 3, 6 and 9; beside them two steps' groups are in flight with a lag of 2
        (EVERY_THIRD, Begun(), Workload(80, 8, 31, 7)),
        ((*EVERY_THIRD, "eval.games=0"), Begun(), Workload(80, 8, 21, 7)),
        ((*EVERY_THIRD, "train.max_policy_lag=2"), Begun(), Workload(80, 24, 31, 23)),
        ((*EVERY_THIRD, "train.steps=9"), Begun(), Workload(72, 8, 24, 7)),
        # resumed after step 6: steps 7 to 10, the games after step 9 and after training
        (EVERY_THIRD, Begun(6, evaluated=True), Workload(32, 8, 12, 7)),
        (EVERY_THIRD, Begun(6, evaluated=True, cut_off=True), Workload(32, 8, 19, 7)),
        # all is trained; the games after it are left
        (EVERY_THIRD, Begun(10, evaluated=True), Workload(0, 0, 5, 5)),
    ],
)
def test_what_is_left_to_play(more: Sequence[str], begun: Begun, work: Workload) -> None:
    experiment = resolve(compose(None, [*SMALL, *more]))
    assert of_training(experiment, begun) == work
