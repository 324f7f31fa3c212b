"""What a client may ask for, as frozen values: the common ground of every codec.

A codec turns a body into one of these and a result back into a body; the service knows only
these. Arrays are numpy, token ids are int32, everything else is float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LoraCall:
    rank: int
    seed: int | None
    alpha: float
    train_attn: bool
    train_mlp: bool
    train_unembed: bool


@dataclass(frozen=True)
class CreateModelCall:
    session_id: str
    model_seq_id: int | None
    base_model: str
    lora: LoraCall | None  # None: every weight is trained
    user_metadata: Mapping[str, Any] | None


@dataclass(frozen=True)
class DatumCall:
    tokens: NDArray[np.int32]
    inputs: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class TrainCall:
    """forward (backward=False) and forward_backward."""

    model_id: str
    seq_id: int | None
    data: list[DatumCall]
    loss: str
    config: Mapping[str, float]
    backward: bool
    packed: bool = False  # it came as protobuf


@dataclass(frozen=True)
class OptimCall:
    model_id: str
    seq_id: int | None
    adam: Mapping[str, float]


@dataclass(frozen=True)
class SaveCall:
    """save_weights (sampler=False) and save_weights_for_sampler; path None there: ephemeral."""

    model_id: str
    seq_id: int | None
    path: str | None
    sampler: bool
    overwrite: bool
    sampling_session_seq_id: int | None


@dataclass(frozen=True)
class LoadCall:
    model_id: str
    seq_id: int | None
    path: str
    optimizer: bool


@dataclass(frozen=True)
class CreateByLoadCall:
    """load_weights with a session in place of a model: it creates the model that it loads into."""

    session_id: str
    model_seq_id: int
    path: str
    optimizer: bool
    user_metadata: Mapping[str, Any] | None


@dataclass(frozen=True)
class SamplingSessionCall:
    session_id: str
    sampling_session_seq_id: int | None
    model_path: str | None
    base_model: str | None


@dataclass(frozen=True)
class SampleCall:
    """One asample: exactly one of the three names says which weights."""

    sampling_session_id: str | None
    model_path: str | None
    base_model: str | None
    tokens: NDArray[np.int32]
    num_samples: int
    max_tokens: int | None
    stop_ids: frozenset[int]
    temperature: float
    seed: int | None
    top_k: int
    top_p: float
    prompt_logprobs: bool


@dataclass(frozen=True)
class SampledSequence:
    stop_reason: str
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class SampleResult:
    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None
    weights: str


@dataclass(frozen=True)
class TrainResult:
    logprobs: list[NDArray[np.float32]]
    metrics: Mapping[str, float] = field(default_factory=dict)
