"""OpenEnv's own ``openspiel_env``, in this process and behind its own application, with a task in
YAML alone: conf/openspiel_blackjack.yaml.

It is on no package index: it lives in OpenEnv's repository, under ``envs/openspiel_env``. Its
requirements would install ``openenv-core`` over an ``openenv``; hence ``--no-deps``::

    python -m pip install open_spiel
    git clone --depth 1 https://github.com/huggingface/OpenEnv
    python -m pip install --no-deps "openenv-openspiel-env @ file://$PWD/OpenEnv/envs/openspiel_env"
    python -m pytest -m peer tests/peers/test_openspiel.py
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.envs.connect import environments_for, server_for
from mtrl_cli.envs.interface import Watch
from mtrl_cli.envs.seeds import seed_notice
from mtrl_cli.rollout.ports import EnvironmentFault, ToolCall
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.tasks.load import load_task

pytest.importorskip("pyspiel", reason="needs open_spiel: see the module's docstring")
pytest.importorskip("openspiel_env", reason="needs openspiel_env: see the module's docstring")

pytestmark = pytest.mark.peer

SEEN = re.compile(r"^Cards: (.+)\. Total: (\d+)\. Dealer: (.+)\.$")


def parts(*overrides: str) -> tuple[Any, Any]:
    experiment = resolve(compose("openspiel_blackjack", list(overrides)))
    task = experiment.task
    return experiment, load_task(task.entrypoint, task.name, -1.0, dict(task.params))


def total(cards: str) -> int:
    points = sum({"A": 1, "J": 10, "Q": 10, "K": 10}.get(c) or int(c) for c in cards.split())
    return points + 10 if "A" in cards.split() and points + 10 <= 21 else points


async def play(envs: Any, task: Any, games: int, least: int) -> float:
    """The mean reward of hitting below ``least``; every text is checked on the way."""
    returns = 0.0
    for number in range(games):
        environment = await envs.open()
        text, done = await environment.reset(task.sample(number), 0), False
        while not done:
            match = SEEN.match(text)
            assert match
            assert int(match[2]) == total(match[1])
            assert len(match[3].split()) == 1
            action = "hit" if total(match[1]) < least else "stand"
            outcome = await environment.step(ToolCall("play", {"action": action}))
            text, done = outcome.text, outcome.done
            returns += outcome.reward
        with pytest.raises(EnvironmentFault, match="step after the end"):
            await environment.step(ToolCall("play", {"action": "hit"}))
        await environment.close()
    return returns / games


async def test_in_this_process() -> None:
    experiment, task = parts()
    watch = Watch()
    envs: Any = environments_for(experiment, task, watch)
    # 4 standard errors of 2,000 games; the exact value is that of always standing.
    assert await play(envs, task, 2000, 0) == pytest.approx(-0.183443, abs=4 * 0.97 / 2000**0.5)
    assert watch.counts["reset_arguments_dropped"] == 2000
    notice = await seed_notice(envs, task, RolloutResources())
    assert notice.startswith("the environment ignores its seed")
    await envs.close()


async def test_behind_its_own_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OPENSPIEL_GAME", "blackjack")
    experiment, task = parts("env.kind=openenv_served")
    server = server_for(experiment, tmp_path / "log")
    assert server is not None
    async with server:
        envs: Any = environments_for(experiment, task, Watch(), server)
        await envs.check()
        mean = await play(envs, task, 300, 17)
        assert mean == pytest.approx(-0.080092, abs=4 * 0.95 / 300**0.5)
        await envs.close()
