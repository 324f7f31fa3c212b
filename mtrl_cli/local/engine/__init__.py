"""The embedded server's engine: a small transformer in numpy, trained and sampled on the CPU.

``TrainableModel`` accumulates gradients and steps Adam; ``Sampler`` draws completions for many
requests at once. The entry point of a process sets ``OPENBLAS_NUM_THREADS=1`` before numpy is
imported: see ``gradient``.
"""

from mtrl_cli.local.engine.sampling import Sampler
from mtrl_cli.local.engine.training import TrainableModel
from mtrl_cli.local.engine.types import (
    AdamParams,
    Completion,
    Datum,
    Lora,
    LossName,
    LossOutput,
    SampleSpec,
    Shape,
    Weights,
)
from mtrl_cli.local.engine.weights import load_base

__all__ = [
    "AdamParams",
    "Completion",
    "Datum",
    "Lora",
    "LossName",
    "LossOutput",
    "SampleSpec",
    "Sampler",
    "Shape",
    "TrainableModel",
    "Weights",
    "load_base",
]
