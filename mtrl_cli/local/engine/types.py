"""The engine's vocabulary: shapes, training data, optimiser parameters, sampling requests.

All records are frozen. Arrays inside them are treated as read-only by the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A numpy array; floating arrays are float32 (float64 only in gradient checks)."""
Weights: TypeAlias = Mapping[str, Array]
"""Matrices by name (see ``weights.shapes``): float32, C-contiguous, read-only once made."""
LossName: TypeAlias = Literal["cross_entropy", "importance_sampling", "ppo", "cispo"]


@dataclass(frozen=True)
class Shape:
    """The architecture's free numbers. ``width`` is a multiple of ``2 * heads`` (RoPE pairs)."""

    vocab: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 2048
    """The largest number of tokens in one sequence, prompt and completion together."""

    @property
    def head(self) -> int:
        """The width of one attention head."""
        return self.width // self.heads

    def __post_init__(self) -> None:
        if min(self.vocab, self.width, self.layers, self.heads, self.context) < 1:
            raise ValueError(f"all numbers of a shape are positive, got {self}")
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is no multiple of 2 * heads ({self.heads})")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters: W + (alpha / rank) * A @ B, with B zero at first.

    ``train_attn`` and ``train_mlp`` choose the adapted matrices of every layer;
    ``train_unembed`` adapts the token matrix, which is the head and, as the two are tied, the
    input embedding too. ``seed`` draws the A matrices.
    """

    rank: int
    alpha: float = 32.0
    seed: int = 0
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"LoRA rank must be at least 1, got {self.rank}")
        if not (self.train_attn or self.train_mlp or self.train_unembed):
            raise ValueError("LoRA without anything to train: set train_attn, train_mlp or both")


@dataclass(frozen=True)
class Datum:
    """One training sequence: ``tokens`` int32 [T] and what the loss needs at each of them.

    ``inputs["target_tokens"]`` (int [T]) is what position t should predict; usually the next
    token. ``cross_entropy`` needs ``weights``, the other losses ``logprobs`` (of the sampling
    policy) and ``advantages``: floats [T]. A position with weight or advantage 0 adds nothing.
    """

    tokens: Array
    inputs: Mapping[str, Array]


@dataclass(frozen=True)
class LossOutput:
    """The summed loss, the logprob of every target token (float32 [T] a datum), and metrics."""

    loss: float
    logprobs: list[Array]
    metrics: dict[str, float]


@dataclass(frozen=True)
class AdamParams:
    """Adam as the Tinker API names it; ``weight_decay`` is decoupled, as in AdamW.

    ``grad_clip_norm`` bounds the L2 norm over all gradients; 0 turns clipping off.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class SampleSpec:
    """One sampling request.

    ``temperature`` 0 is greedy. ``top_k`` -1 and ``top_p`` 1 switch those filters off.
    ``seed`` None draws a fresh one. With ``prompt_logprobs`` the completion also carries the
    logprob of every prompt token.
    """

    tokens: tuple[int, ...] | Array
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    temperature: float = 1.0
    seed: int | None = None
    top_k: int = -1
    top_p: float = 1.0
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class Completion:
    """What a request sampled. A sampled stop token is the last of ``tokens``.

    All logprobs are those of the model's own distribution, whatever the request's temperature,
    ``top_k`` and ``top_p``: they are the numbers that training compares against.
    ``prompt_logprobs[0]`` is None, as nothing precedes the first token.
    """

    tokens: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]
    prompt_logprobs: list[float | None] | None = None
