"""The trackers. Each is imported when it is opened, and is an extra of its own.

What they get: the settings without secrets, the figures of each step and evaluation, a summary.
Their own keys and addresses they take from their own environment variables.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

from mtrl_cli.errors import MtrlError
from mtrl_cli.sinks.mlflow_run import MLflow
from mtrl_cli.sinks.relay import Opener, Sink
from mtrl_cli.sinks.run_info import RunInfo
from mtrl_cli.sinks.tensorboard import TensorBoard
from mtrl_cli.sinks.trackio_run import Trackio
from mtrl_cli.sinks.weights_and_biases import WeightsAndBiases

_EXTRAS: Mapping[str, Callable[[RunInfo], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
    "mlflow": MLflow,
}


def openers(sinks: list[str], run: RunInfo) -> dict[str, Opener]:
    """How each of the named sinks is opened for ``run``."""
    return {name: partial(_opened, name, run) for name in sinks}


def _opened(name: str, run: RunInfo) -> Sink:
    try:
        return _Finite(_EXTRAS[name](run))
    except ImportError as error:
        raise MtrlError(f"{error}: python -m pip install 'mtrl-cli[{name}]'") from error


class _Finite:
    """Passes finite figures on; trackers disagree about the others."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.close = sink.close

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._sink.log(step, {k: float(v) for k, v in figures.items() if math.isfinite(v)})
