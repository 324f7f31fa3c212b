"""A run's events, told to its sinks beside whoever watches."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.config.schema import Experiment
from mtrl_cli.config.secrets import leaves
from mtrl_cli.rollout.events import Observer
from mtrl_cli.sinks.relay import Relay
from mtrl_cli.sinks.trackers import RunInfo, openers
from mtrl_cli.training.events import Evaluated, Notice, RunFailed, RunFinished, StepFinished


class Relaying:
    """An observer that also tells the sinks of an experiment. Made inside the run's event loop."""

    def __init__(self, experiment: Experiment, folder: Path, observer: Observer) -> None:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._step = 0
        self._summary: dict[str, Any] = {}
        sinks = list(dict.fromkeys(sink.value for sink in experiment.sinks))
        info = RunInfo(
            folder.name, experiment.name, folder, experiment.sink.project, _settings(folder)
        )
        self._relay = Relay(openers(sinks, info), self._tell)

    def __call__(self, event: object) -> None:
        self._observer(event)
        match event:
            case StepFinished():
                self._step = event.step
                self._relay.log(event.step, event.metrics)
            case Evaluated():
                self._relay.log(self._step, _figures(event))
            case RunFinished():
                self._summary = {"status": event.status, "steps": event.steps}
                self._summary |= {"policy": event.policy, "episodes": event.episodes}
            case RunFailed():
                self._summary = {"status": "failed"}

    async def close(self) -> None:
        """Wait for the sinks, a bounded time."""
        await asyncio.to_thread(self._relay.close, self._summary)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(self._observer, Notice(text))


def _figures(evaluated: Evaluated) -> Mapping[str, float]:
    named = {
        "eval/mean": evaluated.mean,
        "eval/se": evaluated.se,
        "eval/pass_rate": evaluated.passed / evaluated.games,
    }
    if evaluated.versus is not None:
        named |= {"eval/gain": evaluated.versus.mean, "eval/gain_se": evaluated.versus.se}
    return {name: value for name, value in named.items() if value is not None}


def _settings(folder: Path) -> Mapping[str, str]:
    """The settings as the run recorded them, its secrets masked; without the masks too."""
    import yaml

    container = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    return {key: str(value) for key, value, secret in leaves(container) if not secret}
