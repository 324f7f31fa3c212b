"""The same seeds give the same episodes, wherever the environment runs: in this process, on a
server that mtrl starts, on a server that runs already."""

import json
from pathlib import Path
from typing import Any

from mtrl_cli.config.compose import compose
from mtrl_cli.envs.openenv_served import LOG, ServedEnvironments
from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.runs.ledger import read_ledger
from mtrl_cli.script import open_run

CLASS = "mtrl_cli.tasks.blackjack.env:BlackjackEnvironment"
SMALL = ("seed=11", "group.size=3", "run.concurrency=4", "budget.max_turns=4", "group.per_step=2")


async def play(folder: Path, *overrides: str) -> list[Any]:
    """What two groups saw and did, and the ledger's borrows by kind and last state."""
    composed = compose("blackjack", [*SMALL, f"run.dir={folder}", *overrides])
    async with open_run(composed, "rollout") as opened:
        policy = PolicySnapshot(await opened.parts.service.base_policy(), step=0)
        task, plan = opened.parts.task, opened.plan
        played = await opened.rollout().run(
            [
                plan.admission(
                    "r",
                    "rollout",
                    group,
                    task.sample(seeds.derive("task/rollout", plan.seed, group)),
                    policy,
                )
                for group in range(2)
            ]
        )
        path = opened.folder.path
    left = {entry.state for entry in read_ledger(path / "ledger.jsonl")}
    assert left == {"released"}
    assert json.loads((path / "run.json").read_text())["environments"] == {}
    return [
        (
            [message["content"] for message in member.opening],
            list(member.tokens.ids),
            [call.answer for turn in member.turns for call in turn.calls],
            member.reward,
            member.stop,
        )
        for group in played
        for member in group.members
    ]


async def test_embedded_served_and_remote_are_the_same(tmp_path: Path) -> None:
    embedded = await play(tmp_path / "embedded")
    assert len(embedded) == 6
    assert {reward for *_, reward, _ in embedded} <= {-1.0, 0.0, 1.0}
    assert await play(tmp_path / "served", "env=openenv_served") == embedded
    [log] = tmp_path.glob(f"served/*-*/{LOG}")
    assert log.exists()
    running = ServedEnvironments(
        app=None, entrypoint=CLASS, params={}, concurrency=4, log=tmp_path / LOG
    )
    async with running:
        remote = ("env=openenv_remote", f"env.base_url={running.url}")
        assert await play(tmp_path / "remote", *remote) == embedded
        assert running.alive
