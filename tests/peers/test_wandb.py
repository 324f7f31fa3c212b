"""Weights & Biases in offline mode. Needs: pip install 'mtrl-cli[wandb]'"""

from pathlib import Path

import pytest

from mtrl_cli.sinks.relay import Relay
from mtrl_cli.sinks.trackers import RunInfo, openers

pytestmark = pytest.mark.peer


def test_an_offline_run_is_written_to_the_run_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="pip install 'mtrl-cli[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    told: list[str] = []
    info = RunInfo("20261129-120000-beef", "blackjack", tmp_path, "mtrl", {"seed": "3"})
    relay = Relay(openers(["wandb"], info), told.append)
    relay.log(1, {"reward": 0.25})
    relay.close({"status": "finished"}, seconds=60)
    assert told == []
    (file,) = tmp_path.glob("wandb/offline-run-*/run-20261129-120000-beef.wandb")
    written = file.read_bytes()
    assert b"reward" in written
    assert b"finished" in written
