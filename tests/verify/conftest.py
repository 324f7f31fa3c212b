"""One run with everything in it, made once: a refill, a rollback, two attempts."""

import shutil
from pathlib import Path

import pytest

from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.verify.runs import Player, attempt


@pytest.fixture(scope="session")
def resumed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attempt 1 commits steps 1 to 3, with a state at 2, and loses the reply to its fourth
    optimizer step; attempt 2 goes back to step 2 and finishes. One member was refilled."""
    parent = tmp_path_factory.mktemp("verified") / "runs"
    with ScriptedPolicyServer(sampler=Player(3), dedupes=False) as server:
        server.faults.add("optim_step", faults.drop_reply(), skip=3)
        run = attempt(server, parent, "server.dedupes=false", fails=True)
        return attempt(server, parent, "server.dedupes=false", run=run)


@pytest.fixture
def copy(resumed_run: Path, tmp_path: Path) -> Path:
    """The run, to be damaged."""
    return Path(shutil.copytree(resumed_run, tmp_path / resumed_run.name))
