"""What a training run tells whoever watches, beside the events of the rollout core."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TREND_KEPT = 24
"""Steps whose rewards a trend is drawn of; a resumed run tells those of its last ones."""

EVALUATION = "eval"
"""The stream of the games of an evaluation, each a group of one."""

EQUAL_REWARDS = "constant_reward"
"""Why a group gave no advantage: in the names of metrics, in groups.jsonl and in
`RunFinished.skipped`."""


@dataclass(frozen=True, slots=True)
class FolderMade:
    """From here on the run has a folder, whatever becomes of it."""

    run: str
    folder: str
    attempt: int = 1
    step: int = 0
    """Steps that earlier attempts have committed, and that stand."""


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
    rewards: Sequence[float] = ()
    """The mean rewards of the last of them, at most `TREND_KEPT`."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know and that stops nothing; one line."""

    text: str


@dataclass(frozen=True, slots=True)
class ServiceStrained:
    """``reissued`` calls to the server were made again since the attempt began; ``waits`` is why
    calls wait at this moment, in the server's words; None where none is known to."""

    reissued: int
    waits: str | None


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
class Comparison:
    """A policy against another one on the same games: the rewards' differences, game by game."""

    against: str
    """The other policy."""
    label: str
    """Of the evaluation that it was played in."""
    pairs: int
    left_out: int
    """Games that failed for one of the two."""
    mean: float
    se: float | None
    interval: Sequence[float] | None
    """95 % confidence interval of the mean; None, as the standard error, of a single pair."""
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The reward of a policy over ``games`` episodes; intervals are of 95 %."""

    label: str
    policy: str
    mean: float
    se: float | None
    """Standard error of the mean; None of a single game."""
    games: int
    invalid_call_share: float
    """Turns that did not end in tool calls which the environment executed, as a share of all."""
    interval: Sequence[float] | None = None
    passed: int = 0
    """Episodes that count as passed."""
    pass_interval: Sequence[float] | None = None
    stops: Mapping[str, int] = field(default_factory=dict)
    """Episodes by how they ended."""
    unfinished: int = 0
    """Episodes that ended without the environment's ``done``."""
    failed: int = 0
    """Games left out: they have no reward."""
    temperature: float | None = None
    versus: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Resumable:
    """What stands of a training run that has not finished."""

    committed: int
    """The last committed step; 0 is the policy that training began from."""
    begins: int
    """The step at which a resume begins; below 0 it begins anew, as no training state was saved."""
    unstepped: tuple[str, ...] = ()
    """Models whose gradients the server would hand on to the resume's own: it is to be started
    again first."""


@dataclass(frozen=True, slots=True)
class RunFailed:
    """A run that ended with an error, which is told apart from this."""

    run: str
    folder: str
    resumable: Resumable | None
    quarantined: tuple[str, ...]


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
    evaluated: Evaluated | None = None
    """What ``mtrl eval`` found."""
    resumable: Resumable | None = None
    """What a stopped training run can be resumed from."""
    failed: int = 0
    """Episodes without a reward, which were played again or left out."""
    seconds: float | None = None
    """How long the attempt took, as ``run.json`` tells; None for a run without a folder."""
