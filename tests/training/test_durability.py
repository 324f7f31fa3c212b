"""What is on disk, and when: a training call is never sent before its intent is there, and a step
is never committed before the calls that it rests on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtrl_cli.runs.ledger import Ledger
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.training.runs import train_on
from tests.training.test_end_to_end import Player


class Disk:
    """What an fsync has put there, by file name; and the ledger's state at every commit."""

    def __init__(self) -> None:
        self.synced: dict[str, str] = {}
        self.written: list[str] = []
        self.at_commit: list[bool] = []
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            return
        self.syncs += 1
        if path.suffix == ".tmp":  # a document, before it gets its name
            self.written.append(path.name)
            return
        self.synced[path.name] = path.read_text()
        if path.name == "commits.jsonl":
            ledger = path.with_name("ledger.jsonl")
            step = len(self.at_commit)  # step 0 is what training began from
            self.at_commit.append(
                self.synced[ledger.name] == ledger.read_text()
                and (step == 0 or f"step-{step:06d}.jsonl.gz.tmp" in self.written)
            )


@contextmanager
def watched(disk: Disk, monkeypatch: object) -> Iterator[None]:
    with monkeypatch.context() as patch:  # type: ignore[attr-defined]
        patch.setattr(os, "fsync", disk.sync)
        yield


def test_an_intent_is_on_disk_with_everything_before_it(tmp_path: Path, monkeypatch) -> None:
    disk, path = Disk(), tmp_path / "ledger.jsonl"
    with watched(disk, monkeypatch):
        ledger = Ledger(path)
        for state in ("intent", "accepted", "done"):
            ledger.call("a1/forward_backward/1", state)
        assert disk.synced["ledger.jsonl"].count("\n") == 1
        assert path.read_text().count("\n") == 3  # a kill of the process loses none of them
        ledger.call("a1/optim_step/2", "intent")
        assert disk.synced["ledger.jsonl"] == path.read_text()
        ledger.call("a1/optim_step/2", "unknown")
        assert disk.synced["ledger.jsonl"] == path.read_text()
        ledger.close()


async def test_no_commit_without_the_calls_and_the_trajectories_that_it_rests_on(
    tmp_path: Path, monkeypatch
) -> None:
    disk = Disk()
    with watched(disk, monkeypatch):
        async with ScriptedPolicyServer(sampler=Player()) as server:
            await train_on(server.url, tmp_path, "train.steps=2", "train.kl=0.1")
    assert disk.at_commit == [True, True, True]  # steps 0, 1, 2
