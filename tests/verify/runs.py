"""Real runs to be verified, made in this process against a scripted server."""

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import ignore
from mtrl_cli.runs.stop import Stage, StopRequest
from mtrl_cli.runs.verify.check import verify
from mtrl_cli.runs.verify.report import Finding, Report
from mtrl_cli.testing.counted_world import FOLDER_VARIABLE, CountedWorld
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import PhaseStarted, StepFinished
from mtrl_cli.training.play import play
from mtrl_cli.training.run import resume, train
from mtrl_cli.training.telling.retelling import retelling_of
from tests.settlement.cells import player
from tests.training.runs import experiment

COUNTED = (
    "task.name=counted",
    "task.entrypoint=mtrl_cli.testing.counted_world:CountedTask",
    "env.entrypoint=mtrl_cli.testing.counted_env:CountedEnvironment",
    "group.size=3",
    "group.per_step=2",
    "train.steps=4",
    "train.checkpoint_every=2",
)
"""Two turns an episode; the reward is the member's index plus a tenth of what it played."""


class Player:
    """`tests.settlement.cells.player`, with a logprob above 0 in the ``bad``-th answers."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad
        self._count = 0

    def __call__(self, tokens: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        self._count += 1
        ids, logprobs = player(tokens, seed)
        spread = [value - index / 64 for index, value in enumerate(logprobs)]
        return ids, [0.5, *spread[1:]] if self._count in self._bad else spread


def attempt(
    server: ScriptedPolicyServer,
    parent: Path,
    *overrides: str,
    run: Path | None = None,
    stop: tuple[Stage, int] | None = None,
    before: str | None = None,
    fails: bool = False,
) -> Path:
    """Train a new run, or go on with ``run``; its folder.

    ``stop``: how it is stopped, after which step, or ``before`` which phase of the next policy.
    ``fails``: it must end in an error.
    """
    CountedWorld(parent.parent / "world")
    made, yaml = experiment(
        f'server.base_url="{server.url}"', f'run.dir="{parent}"', *COUNTED, *overrides
    )

    async def work() -> None:
        request = StopRequest()

        def observe(event: object) -> None:
            if stop is not None and at(event, stop[1]):
                request.request(stop[0])

        def at(event: object, step: int) -> bool:
            if before is None:
                return isinstance(event, StepFinished) and event.step == step
            return isinstance(event, PhaseStarted) and (event.phase, event.step) == (before, step)

        if run is None:
            await train(made, yaml, observer=observe, stop=request)
        else:
            await resume(run, made, observer=observe, stop=request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(parent.parent / "world"))
        if fails:
            with pytest.raises(MtrlError):
                asyncio.run(work())
        else:
            asyncio.run(work())
    [folder] = [path for path in parent.iterdir() if not path.is_symlink()]
    return folder


def played(server: ScriptedPolicyServer, parent: Path, policy: str) -> Path:
    """Play three groups under a published policy; the run's folder."""
    made, yaml = experiment(
        f'server.base_url="{server.url}"', f'run.dir="{parent}"', *COUNTED, f'policy="{policy}"'
    )

    async def work() -> None:
        await play(made, yaml, groups=3, observer=ignore, stop=StopRequest())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(parent.parent / "world"))
        asyncio.run(work())
    [folder] = [path for path in parent.iterdir() if not path.is_symlink()]
    return folder


def checked(folder: Path, *, text: bool = True) -> Report:
    return verify(folder, retelling_of(folder) if text else None)[1]


def findings(folder: Path, *, text: bool = True) -> list[Finding]:
    return checked(folder, text=text).findings


# Editing a run's files.


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def write_lines(folder: Path, name: str, records: Sequence[Any]) -> None:
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    (folder / name).write_text(text)


def step_file(step: int) -> str:
    return f"trajectories/step-{step:06d}.jsonl.gz"


def text_of(folder: Path, name: str) -> bytes:
    return gzip.decompress((folder / name).read_bytes())


def write_text(folder: Path, name: str, text: bytes) -> None:
    (folder / name).write_bytes(gzip.compress(text, 1))
