"""What a training run tells whoever watches, beside the events of the rollout core."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FolderMade:
    """From here on the run has a folder, whatever becomes of it."""

    run: str
    folder: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    run: str
    folder: str
    experiment: str
    steps: int
    server: str
    references: Mapping[str, float]
    step: int = 0
    """Steps that earlier attempts have committed."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know and that stops nothing; one line."""

    text: str


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """``start-up``, ``evaluation``, ``sampling``, ``training``, ``publishing``, ``shutdown``."""

    phase: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StepFinished:
    """``metrics`` is the line that metrics.jsonl holds; names in docs/run-folder.md."""

    step: int
    steps: int
    policy: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    label: str
    done: int
    games: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """``mean`` and ``se`` (standard error) of the return over ``games`` episodes."""

    label: str
    policy: str
    mean: float
    se: float
    games: int
    invalid_call_share: float
    """Tool calls that were answered by an error, as a share of all tool calls."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    run: str
    folder: str
    status: str
    """``finished``, ``cancelled`` or ``failed``."""
    reason: str | None
    steps: int
    episodes: int
    sampled_tokens: int
    policy: str | None
    before: Evaluated | None
    after: Evaluated | None
    skipped: Mapping[str, int]
    """Groups that were not trained, by reason."""
    quarantined: tuple[str, ...] = ()
