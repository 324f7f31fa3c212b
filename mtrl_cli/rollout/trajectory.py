"""The record of one episode: its tokens, its turns, how it ended and what it was worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mtrl_cli.rollout.admission import Admission
from mtrl_cli.rollout.ports import Message
from mtrl_cli.rollout.tokens import TokenSequence


class Stop(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    ANSWER = "answer"
    MAX_TURNS = "max_turns"
    TURN_TOKENS = "turn_tokens"
    TRAJECTORY_TOKENS = "trajectory_tokens"
    CONTEXT = "context"
    TIMEOUT = "timeout"
    ENV_FAILURE = "env_failure"
    POLICY_FAILURE = "policy_failure"
    CANCELLED = "cancelled"


TRUNCATED = frozenset({Stop.TURN_TOKENS, Stop.TRAJECTORY_TOKENS, Stop.CONTEXT})
"""A token budget ended the episode: `group.on_truncated` decides about it."""

FAILED = frozenset({Stop.TIMEOUT, Stop.ENV_FAILURE, Stop.POLICY_FAILURE, Stop.CANCELLED})
"""The episode has no reward, never a reward of 0: `group.on_failure` decides about it."""


class CallRecord(NamedTuple):
    """One tool call of a turn and its answer. ``error`` when the call could not be executed."""

    name: str
    answer: str
    reward: float
    done: bool
    error: bool
    arguments: Mapping[str, Any]


class Turn(NamedTuple):
    """One sampled completion, as text, and what the environment answered."""

    text: str
    tokens: int
    calls: tuple[CallRecord, ...]


@dataclass(slots=True)
class Trajectory:
    """One episode. ``reward`` is None exactly when the episode failed."""

    admission: Admission
    tokens: TokenSequence
    opening: Sequence[Message]
    """The messages of the prompt."""
    turns: list[Turn] = field(default_factory=list)
    stop: Stop = Stop.CANCELLED
    reward: float | None = None
    failure: str | None = None
    """What failed, in one line."""
    trace: str | None = None
    """The traceback, where the task's own code failed."""
    interrupts: bool = False
    """It asks for the run's end, as a Ctrl-C does."""
    refusal: str | None = None
    """The counted reason when a token rule refused the trajectory, such as ``divergent``."""
    permanent: bool = False
    """Trying again cannot help."""
    seconds_policy: float = 0.0
    """Wall time that the episode waited for the policy's turns."""
    seconds_environment: float = 0.0
    """Wall time that it waited for its environment: to get one, to reset it, and its tool calls."""

    @property
    def failed(self) -> bool:
        return self.stop in FAILED

    @property
    def truncated(self) -> bool:
        return self.stop in TRUNCATED

    @property
    def tool_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def tool_errors(self) -> int:
        return sum(call.error for turn in self.turns for call in turn.calls)
