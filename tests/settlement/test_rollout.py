"""Stopping `mtrl rollout`: what was played is kept, and nothing new begins."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtrl_cli.runs.trajectories import read_trajectories
from mtrl_cli.testing.counted_world import Act
from tests.settlement import audit
from tests.settlement.process import APART
from tests.settlement.scene import Scene, scene

ROLLOUT = ("--groups", "50", "run.concurrency=2")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Scene]:
    """Two groups are played, the members of the third wait in their first step."""
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="step", instances=(5, 6)))
        yield scenery


def played(scenery: Scene) -> list[tuple[int, int]]:
    """Group and member of every trajectory that was written."""
    path = scenery.folder / "trajectories" / "rollout.jsonl.gz"
    return sorted((record["group"], record["member"]) for record in read_trajectories(path))


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2])
def test_a_stopped_rollout_keeps_what_was_played(held: Scene, times: int) -> None:
    with held.train(*ROLLOUT, command="rollout") as run:
        run.wait(lambda: held.world.waiting("step") == 2, "the third group")
        for index in range(times):
            time.sleep(APART if index else 0.0)
            run.send(signal.SIGINT)
        run.says("stopping now (" if times == 2 else "stopping (")
        held.world.open("step")
        assert run.code() == 130
    # Admitted beside the third group was the fourth: a drain plays it, a stop drops both.
    groups = 2 if times == 2 else 4
    assert played(held) == [(group, member) for group in range(groups) for member in range(2)]
    assert held.world.live() == []
    assert audit.state(held.folder)["status"] == "cancelled"
    assert [record["group"] for record in audit.records(held.folder, "groups.jsonl")] == [
        *range(groups)
    ]
