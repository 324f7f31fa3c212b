"""A run whose ledger cannot grow any more: it ends, gives back what it can, and is reaped."""

import resource
from pathlib import Path

import pytest

from mtrl_cli.testing.counted_world import Act
from tests.cli.processes import mtrl
from tests.settlement import audit
from tests.settlement.scene import Scene, scene


def fill(scenery: Scene, pid: int) -> None:
    """From now on no file of the process may become longer than its ledger is."""
    length = (scenery.folder / "ledger.jsonl").stat().st_size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (length, length))


@pytest.mark.long
@pytest.mark.parametrize("phase", ["episode", "training call"])
def test_a_ledger_that_cannot_grow_ends_the_run(tmp_path: Path, phase: str) -> None:
    with scene(tmp_path) as scenery:
        if phase == "episode":
            scenery.world.script(step=Act(gate="step"))
        else:
            scenery.hold("optim_step")
        with scenery.train() as run:
            if phase == "episode":
                run.wait(lambda: scenery.world.waiting("step") == 2, phase)
            else:
                run.wait(lambda: scenery.gate.arrived == 1, phase)
            fill(scenery, run.process.pid)
            scenery.world.open("step")
            scenery.gate.open()
            assert run.code() == 1
            assert "Traceback" not in run.err
            errors = [line for line in run.err.splitlines() if line.startswith("error: ")]
            assert errors == [
                f"error: {scenery.folder.relative_to(tmp_path)}/ledger.jsonl: File too large"
            ]
        assert scenery.world.live() == []
        ended = mtrl("cancel", "last", cwd=tmp_path, **scenery.environ)
        assert ended.returncode == 0, ended.stderr
        assert scenery.server.models == {}
        assert list(audit.unfinished_entries(scenery.folder)) == []
        assert list(audit.repeated(scenery.server, reaped=True)) == []
        assert mtrl("verify", "last", cwd=tmp_path).returncode == 0
