"""Two processes that want the same run, or the same folder of runs, at the same time."""

import contextlib
from pathlib import Path

import pytest

from mtrl_cli.testing.counted_world import Act
from tests.cli.processes import mtrl
from tests.settlement import audit
from tests.settlement.process import Running
from tests.settlement.scene import scene


@pytest.mark.long
def test_of_two_resumes_at_once_one_goes_on(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery:
        scenery.world.script(step=Act(gate="step"))
        with scenery.train() as run:
            run.wait(lambda: scenery.world.waiting("step") == 2, "the step")
            run.process.kill()
            run.code()
        with contextlib.ExitStack() as both:
            rivals = []
            for name in ("a", "b"):
                (tmp_path / name).mkdir()
                where = ("--runs-dir", str(tmp_path / "runs"))
                one = Running("train", "--resume", scenery.folder.name, *where,
                              cwd=tmp_path / name, environ=scenery.environ)  # fmt: skip
                both.callback(one.end)
                rivals.append(one)
            first = rivals[0]
            first.wait(lambda: any(one.process.poll() is not None for one in rivals), "refusal", 60)
            scenery.world.open("step")
            assert sorted(one.code() for one in rivals) == [0, 4]
        refused = max(rivals, key=lambda one: one.code())
        assert f"error: {scenery.folder.name} is still running (attempt 2, process" in refused.err
        state = audit.state(scenery.folder)
        assert (state["status"], state["attempt"]) == ("finished", 2)
        assert scenery.server.models == {}
        assert list(audit.unfinished_entries(scenery.folder)) == []
        assert mtrl("verify", "last", cwd=tmp_path).returncode == 0
