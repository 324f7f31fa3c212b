"""The trackers. Each is imported when it is opened, and is an extra of its own.

What they get: the settings without secrets, the figures of each step and evaluation, a summary.
Their own keys and addresses they take from their own environment variables.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.sinks.relay import Opener, Sink


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run as a tracker gets it."""

    id: str
    experiment: str
    folder: Path
    project: str
    settings: Mapping[str, str]


class TensorBoard:
    """Event files in the run's folder: ``tensorboard --logdir runs``."""

    def __init__(self, run: RunInfo) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(run.folder / "tensorboard"))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        import time

        values = [self._summary.Value(tag=k, simple_value=v) for k, v in figures.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._writer.add_event(event)

    def close(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of wandb; ``WANDB_MODE=offline`` keeps it in ``wandb/`` of the run's folder."""

    def __init__(self, run: RunInfo) -> None:
        import wandb

        self._run = wandb.init(
            project=run.project,
            id=run.id,
            name=f"{run.experiment} {run.id}",
            config=dict(run.settings),
            dir=str(run.folder),
            resume="allow",
            settings=wandb.Settings(
                console="off", disable_git=True, disable_code=True, silent=True
            ),
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({**figures, "step": step})

    def close(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish()


_EXTRAS: Mapping[str, Callable[[RunInfo], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def openers(sinks: list[str], run: RunInfo) -> dict[str, Opener]:
    """How each of the named sinks is opened for ``run``."""
    return {name: partial(_opened, name, run) for name in sinks}


def _opened(name: str, run: RunInfo) -> Sink:
    try:
        return _Finite(_EXTRAS[name](run))
    except ImportError as error:
        raise MtrlError(f"{error}: pip install 'mtrl-cli[{name}]'") from error


class _Finite:
    """Passes finite figures on; trackers disagree about the others."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.close = sink.close

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._sink.log(step, {k: float(v) for k, v in figures.items() if math.isfinite(v)})
