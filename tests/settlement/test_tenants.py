"""Two runs at once on one server: stopping one returns what is its own, and changes nothing for
the other, which finishes with the trajectories that it has when it is alone."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtrl_cli.runs.trajectories import read_trajectories
from mtrl_cli.testing.counted_world import Act, CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.processes import command, environment
from tests.settlement import audit
from tests.settlement.cells import SCRIPTED, TINY, player
from tests.settlement.process import APART, Running

BLACKJACK = f"task.entrypoint={Path(__file__).with_name('blackjack.py')}:CountedBlackjack"


class Tenant:
    """One run with a world and a folder of its own."""

    def __init__(self, home: Path, name: str, *where: str) -> None:
        self.cwd = home / name
        self.cwd.mkdir()
        self.world = CountedWorld(self.cwd / "world")
        self._where = where
        self.run: Running | None = None

    @contextmanager
    def training(self, *overrides: str) -> Iterator[Running]:
        self.run = Running(
            "train", *TINY, *self._where, *overrides, cwd=self.cwd,
            environ={**self.world.environ(), "TINKER_API_KEY": "none-needed"},
        )  # fmt: skip
        try:
            yield self.run
        finally:
            self.run.end()

    @property
    def folder(self) -> Path:
        found = audit.run_folder(self.cwd)
        assert found is not None
        return found

    @property
    def model(self) -> str:
        """The server's name for its model."""
        held = [e for e in audit.entries(self.folder) if e.facts.get("kind") == "server_model"]
        return str(held[0].facts["id"])

    def commits(self) -> int:
        found = audit.run_folder(self.cwd)
        begun = found is not None and (found / "commits.jsonl").exists()
        return audit.committed(self.folder) if begun else 0

    def trajectories(self) -> list[dict[str, Any]]:
        """What was played, without the names that differ from run to run."""
        kept = ("group", "member", "task", "tokens", "spans", "logprobs", "reward", "stop")
        files = sorted((self.folder / "trajectories").iterdir())
        played = [record for path in files for record in read_trajectories(path)]
        assert played
        return [{name: record[name] for name in kept} for record in played]


def stop_twice(run: Running, tenant: Tenant) -> None:
    run.send(signal.SIGINT)
    time.sleep(APART)
    run.send(signal.SIGINT)
    tenant.world.open("step")
    assert run.code() == 130


def test_two_runs_on_one_scripted_server(tmp_path: Path) -> None:
    with ScriptedPolicyServer(sampler=player) as server:
        where = (*SCRIPTED, f'server.base_url="{server.url}"')
        alone = Tenant(tmp_path, "alone", *where)
        with alone.training("train.steps=3") as run:
            assert run.code() == 0

        staying, leaving = Tenant(tmp_path, "a", *where), Tenant(tmp_path, "b", *where)
        staying.world.script(step=Act(gate="step", instances=(3, 4)))  # the second step's group
        leaving.world.script(step=Act(gate="step", instances=(2,)))
        with staying.training("train.steps=3") as run, leaving.training("seed=1") as other:
            run.wait(lambda: staying.world.waiting("step") == 2, "the second step")
            other.wait(lambda: leaving.world.waiting("step") == 1, "its step")
            assert set(server.models) == {staying.model, leaving.model}
            stop_twice(other, leaving)

            assert set(server.models) == {staying.model}
            assert leaving.world.live() == []
            assert len(staying.world.live()) == 2
            staying.world.open("step")
            assert run.code() == 0
        assert server.models == {}
        assert staying.world.live() == []
        assert list(audit.repeated(server)) == []
        assert staying.trajectories() == alone.trajectories()
        assert staying.commits() == 3


@pytest.mark.long
def test_two_runs_on_one_embedded_server(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        where = (f'server.base_url="{url}"', BLACKJACK, "group.size=4")
        alone = Tenant(tmp_path, "alone", *where)
        with alone.training("train.steps=3") as run:
            assert run.code(120) == 0

        staying, leaving = Tenant(tmp_path, "a", *where), Tenant(tmp_path, "b", *where)
        with leaving.training("seed=1", "train.steps=500", "group.per_step=4") as other:
            other.wait(lambda: leaving.commits() > 0, "its first step", 60)
            with staying.training("train.steps=3") as run:
                run.wait(lambda: staying.commits() > 0, "the first step", 60)
                stop_twice(other, leaving)
                assert leaving.world.live() == []
                assert not loaded(url, leaving.model)
                assert run.code(120) == 0
        assert not loaded(url, staying.model)
        assert staying.world.live() == []
        assert staying.commits() == 3
        assert staying.trajectories() == alone.trajectories()


@contextmanager
def served(tmp_path: Path) -> Iterator[str]:
    """`mtrl serve` on a free port."""
    server = subprocess.Popen(
        command("serve", "--port", "0", "--store", str(tmp_path / "store")),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"]
        server.send_signal(signal.SIGINT)
        server.wait(20)
    finally:
        server.kill()
        server.communicate()


def loaded(url: str, model: str) -> bool:
    """Whether the embedded server has this model, asked over HTTP."""
    reply = httpx.post(f"{url}/api/v1/get_info", json={"model_id": model}, timeout=20)
    return reply.status_code == 200
