"""Whole runs on a server that mtrl starts for them: nothing of it is left, however they end."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.envs.openenv_served import LOG
from mtrl_cli.runs.ledger import read_ledger
from tests.runs.live import TINY, Train, cancelled, gone

SERVED = (*TINY, "env=openenv_served", "run.concurrency=4", "train.kl=0", "server.store=store")


def env_server(run: Train) -> dict[str, Any]:
    held = [b for b in run.ledger("borrow") if b.get("kind") == "env_server" and "pid" in b]
    return held[-1]


def trained(run: Train) -> bool:
    path = run.folder / "metrics.jsonl"
    return path.exists() and path.read_text().count("\n") >= 2


@pytest.mark.parametrize("way", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
def test_nothing_is_left_of_the_server(tmp_path: Path, way: str) -> None:
    with Train(tmp_path, SERVED) as run:
        run.until(lambda: trained(run))
        server = env_server(run)
        assert server["url"].startswith("http://127.0.0.1:")
        sessions = [b for b in run.ledger("borrow") if b.get("kind") == "env_session"]
        assert {borrow["place"] for borrow in sessions} == {server["url"]}
        if way == "killed":
            run.process.kill()
            run.process.wait()
            told = cancelled("last", cwd=tmp_path)
            assert (told["left"], told["code"]) == ([], 0)
            named = f"env_server {server['pid']}: "
            assert any(line.startswith(named) for line in told["returned"])
            assert not [line for line in told["returned"] if "no way to return" in line]
        else:
            run.process.send_signal(signal.SIGINT)
            assert run.process.wait(60) == 130
            assert json.loads((run.folder / "run.json").read_text())["borrows"]["held"] == 0
        assert gone(server)
        entries = read_ledger(run.folder / "ledger.jsonl")
        assert {e.state for e in entries if e.entry == "borrow"} == {"released"}
        assert (run.folder / LOG).exists()


def test_a_class_that_is_none_ends_before_anything_is_created(tmp_path: Path) -> None:
    wrong = ("env.entrypoint=mtrl_cli.tasks.blackjack.game:Game",)
    with Train(tmp_path, (*SERVED, *wrong)) as run:
        assert run.process.wait(30) == 2
        assert "it is not an OpenEnv environment" in run.said()
    assert not (tmp_path / "runs").exists()
