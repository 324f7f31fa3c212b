"""The embedded server cannot write its store: the run ends, and with the server all in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import command, environment, mtrl
from tests.settlement import audit
from tests.settlement.cells import TINY

AS_ANYBODY = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command without root's power to write where the permissions forbid it."""


@pytest.mark.long
def test_a_model_that_may_have_been_made_is_gone_with_the_server(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "models").mkdir(mode=0o500)  # no folder can be made there
    ended = subprocess.run(
        [sys.executable, "-c", AS_ANYBODY, *command("train", *TINY, "server.store=store")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "error: create_model may have been executed" in ended.stderr
    assert "QUARANTINE" not in ended.stderr
    folder = audit.run_folder(tmp_path)
    assert folder is not None
    assert audit.state(folder)["borrows"] == {"held": 0, "quarantined": []}
    (model,) = [e for e in audit.entries(folder) if e.facts["kind"] == "server_model"]
    assert model.state == "released"
    assert mtrl("verify", "last", cwd=tmp_path).returncode == 0
