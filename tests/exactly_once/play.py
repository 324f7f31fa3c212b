"""The smallest run that makes every kind of training call, and the attempts that play it.

Four steps of one group of two, with a training state at steps 2 and 4. An attempt runs in this
process; the kills use processes of their own (see `zygote`).
"""

import asyncio
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.schema import Experiment
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import ignore
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.testing.counted_world import CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.run import resume, train
from tests.settlement.cells import player

STEPS, SIZE = 4, 2
KEY = "TINKER_API_KEY"
"""Comes from the environment: one that is written down is masked in the run's folder, and the
resumed run would not have it."""
WORDS = (
    "server=tinker",
    "server.base_model=scripted",
    "server.tokenizer=mtrl-tiny",
    "server.snapshots=immutable",
    "server.leaks_gradients=false",
    "task.name=counted",
    "task.entrypoint=mtrl_cli.testing.counted_world:CountedTask",
    "task.params={turns: 1}",
    "env.entrypoint=mtrl_cli.testing.counted_env:CountedEnvironment",
    "env.check_seeds=false",
    "env.threads=2",
    f"group.size={SIZE}",
    "group.per_step=1",
    f"train.steps={STEPS}",
    "train.checkpoint_every=2",
    "train.kl=0",
    "train.lora_rank=8",
    "eval.games=0",
)


def environment_in(folder: Path) -> dict[str, str]:
    """What the runs below this folder need of the environment."""
    return {KEY: "none-needed", **CountedWorld(folder / "world").environ()}


def served(*, dedupes: bool = False) -> ScriptedPolicyServer:
    return ScriptedPolicyServer(sampler=player, dedupes=dedupes, poll_seconds=0.5)


@dataclass(frozen=True)
class Setting:
    """What differs between the runs: where the server is, where the run is recorded, whether the
    server dedupes, and the seconds of a training call."""

    url: str
    runs: Path
    dedupes: bool = False
    patience: float = 60.0

    @property
    def words(self) -> list[str]:
        """As one writes them behind ``mtrl train``."""
        return [*WORDS, *(f"{key}={value}" for key, value in self._keys.items())]

    @property
    def _keys(self) -> dict[str, str]:
        return {
            "server.base_url": f'"{self.url}"',
            "run.dir": f'"{self.runs}"',
            "server.dedupes": str(self.dedupes).lower(),
            "server.training_timeout": str(self.patience),
        }

    def composed(self) -> tuple[Experiment, str]:
        """Composed from one composition for all, as that takes longer than a run."""
        made, text = compose_once()
        where = {
            "base_url": self.url,
            "dedupes": self.dedupes,
            "training_timeout": self.patience,
        }
        written = yaml.safe_load(text)
        written["server"] |= where
        written["run"]["dir"] = str(self.runs)
        changed = replace(
            made,
            server=replace(made.server, **where),
            run=replace(made.run, dir=str(self.runs)),
        )
        return changed, yaml.safe_dump(written)


@lru_cache(1)
def compose_once() -> tuple[Experiment, str]:
    """What every `Setting` is made of."""
    composed = compose("blackjack", Setting("http://127.0.0.1:9", Path("nowhere")).words)
    return resolve(composed), composed.yaml


def attempt(setting: Setting, run: Path | None) -> str | None:
    """Begin a run, or go on with one; how it failed, None where it finished."""
    made, written = setting.composed()

    async def play() -> None:
        stop = StopRequest()
        if run is None:
            await train(made, written, observer=ignore, stop=stop)
        else:
            await resume(run, made, observer=ignore, stop=stop)

    try:
        asyncio.run(play())
    except MtrlError as error:
        return str(error)
    return None


RESUME = ("train", "--resume", "last", "--runs-dir")


def folder_in(runs: Path) -> Path | None:
    """The one run below ``runs``; None where no run began."""
    found = [path for path in runs.glob("*") if not path.is_symlink()]
    assert len(found) <= 1
    return found[0] if found else None
