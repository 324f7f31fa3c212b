"""A run's events, told to its sinks beside whoever watches."""

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mtrl_cli.config.schema import Experiment
from mtrl_cli.config.secrets import Redactor, is_secret, leaves
from mtrl_cli.rollout.events import Observer
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.sinks.past import Past, Point, read_past
from mtrl_cli.sinks.relay import Relay
from mtrl_cli.sinks.run_info import RunInfo
from mtrl_cli.sinks.trackers import openers
from mtrl_cli.training.evaluation.games import evaluation_metrics
from mtrl_cli.training.events import (
    Evaluated,
    Notice,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
)

_SHORTEST_SECRET = 4
_QUERY = re.compile(r"[?&](\w+)=([^&#\s]+)")


class Relaying:
    """An observer that also tells the sinks of an experiment. Made inside the run's event loop.

    ``before`` is the evaluation before training, where an earlier attempt has played it.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        observer: Observer,
        before: Evaluated | None = None,
    ) -> None:
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._step = 0
        self._summary: dict[str, Any] = {}
        self._redact = _trackers_secrets()
        sinks = list(dict.fromkeys(sink.value for sink in experiment.sinks))
        info = RunInfo(
            folder.id,
            experiment.name,
            folder.path,
            experiment.sink.project,
            _settings(folder.path),
            partial(_past, folder.path, folder.attempt, folder.created, before),
        )
        self._relay = Relay(openers(sinks, info), self._tell)

    def __call__(self, event: object) -> None:
        self._observer(event)
        match event:
            case RunStarted():
                self._step = event.step
            case StepFinished():
                self._step = event.step
                self._relay.log(event.step, event.metrics)
            case Evaluated():
                self._relay.log(self._step, evaluation_metrics(event))
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
            self._loop.call_soon_threadsafe(self._observer, Notice(self._redact(text)))


def _past(folder: Path, attempt: int, created: float, before: Evaluated | None) -> Past:
    past = read_past(folder, attempt)
    return past if before is None else past.after(Point(0, evaluation_metrics(before), created))


def _settings(folder: Path) -> Mapping[str, str]:
    """The settings as the run recorded them, its secrets masked; without the masks too."""
    import yaml

    container = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    return {key: str(value) for key, value, secret in leaves(container) if not secret}


def _trackers_secrets() -> Redactor:
    """Takes out of a tracker's error what its own variables hold: a key, a password, a token,
    also one in an address."""
    values = [value for name, value in os.environ.items() if is_secret(name)]
    for value in os.environ.values():
        values += [told for name, told in _QUERY.findall(value) if is_secret(name)]
    return Redactor(frozenset(value for value in values if len(value) >= _SHORTEST_SECRET))
