"""The embedded server cannot write its store: the run ends, and with the server all in it."""

from pathlib import Path

import pytest

from tests.cli.processes import mtrl
from tests.settlement import audit
from tests.settlement.cells import TINY


@pytest.mark.long
def test_a_model_that_may_have_been_made_is_gone_with_the_server(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "models").symlink_to("/proc/self/task")  # nobody can make a folder there
    ended = mtrl("train", *TINY, "server.store=store", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert "error: create_model may have been executed" in ended.stderr
    assert "QUARANTINE" not in ended.stderr
    folder = audit.run_folder(tmp_path)
    assert folder is not None
    assert audit.state(folder)["borrows"] == {"held": 0, "quarantined": []}
    (model,) = [e for e in audit.entries(folder) if e.facts["kind"] == "server_model"]
    assert model.state == "released"
    assert mtrl("verify", "last", cwd=tmp_path).returncode == 0
