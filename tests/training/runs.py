"""Whole runs in one process, against a scripted training service over real HTTP."""

import json
from pathlib import Path
from typing import Any

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.schema import Experiment
from mtrl_cli.rollout.events import Observer, ignore
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.runs.trajectories import read_trajectories
from mtrl_cli.training.events import RunFinished
from mtrl_cli.training.run import train

SMALL = (
    "server=tinker",
    "server.base_model=scripted",
    "server.tokenizer=mtrl-tiny",
    "server.api_key=none-needed",
    "server.snapshots=immutable",
    "train.lora_rank=8",
    "train.checkpoint_every=0",
    "train.kl=0",
    "group.size=2",
    "group.per_step=1",
    "eval.games=0",
)
"""Overrides for a run of small steps against a scripted server; add ``server.base_url``."""


def experiment(*overrides: str) -> tuple[Experiment, str]:
    composed = compose("blackjack", [*SMALL, *overrides])
    return resolve(composed), composed.yaml


async def train_on(
    url: str, runs: Path, *overrides: str, observer: Observer = ignore
) -> RunFinished:
    """Train against the server at ``url``, recording under ``runs``."""
    made, yaml = experiment(f'server.base_url="{url}"', f'run.dir="{runs}"', *overrides)
    return await train(made, yaml, observer=observer, stop=StopRequest())


def trajectories(run: RunFinished, step: int) -> list[dict[str, Any]]:
    path = Path(run.folder) / "trajectories" / f"step-{step:06d}.jsonl.gz"
    return list(read_trajectories(path))


def lines(run: RunFinished, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run.folder) / name).read_text().splitlines()]
