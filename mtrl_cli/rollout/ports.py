"""The ports of the rollout core: what it asks of a policy, a chat format, an environment, a task.

The core owns these interfaces and imports no implementation; `servers`, `chat`, `envs` and
`tasks` implement them. Every failure crosses a port as one of the errors at the end of this
file, so that the core can attribute it to one boundary and record it once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.frozen import frozen
from mtrl_cli.rollout.lending import Lender

Message = Mapping[str, Any]
"""A chat message in the OpenAI form: role, content, and for assistants ``tool_calls``."""

ToolSpec = Mapping[str, Any]
"""A tool in the OpenAI form: ``{"type": "function", "function": {name, parameters, …}}``."""


# --- policy ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. ``top_k`` -1 and ``top_p`` 1 switch those filters off."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class SampleRequest(NamedTuple):
    """One turn to sample: the full token context, and the policy that must continue it."""

    policy: str
    tokens: Sequence[int]
    max_tokens: int
    stop_ids: tuple[int, ...]
    seed: int
    sampling: SamplingParams


class Sample(NamedTuple):
    """What a server returned for one turn, untouched.

    ``logprobs`` holds one value per token of ``tokens``; the trajectory checks it. A sampled
    stop token is part of ``tokens``. ``policy`` is the URI of the weights that the server says
    it used, None where it does not say.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: Literal["stop", "length"]
    policy: str | None = None
    echo: Sequence[int] | None = None
    """The context as the server saw it, prompt and completion, where it echoes one."""


class Policy(Protocol):
    """Samples under an immutable policy snapshot."""

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one turn.

        Raises:
            ContextOverflow: the server says that the context window is full.
            PolicyFailure: the request failed for good.
        """
        ...


# --- chat -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call read from sampled text.

    ``error`` says what is wrong with a call that cannot be executed (broken JSON, unknown tool,
    wrong arguments); it is what the model is told. None for a good call.
    """

    name: str
    arguments: Mapping[str, Any]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """A sampled completion as text: what it says, and the tools that it calls, in order."""

    text: str
    calls: tuple[ToolCall, ...]


class Chat(Protocol):
    """Text to tokens and back, append-only."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end markers of a turn; the first one is the template's own."""
        ...

    @property
    def vocabulary(self) -> int:
        """Every id is below it."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The ids of a conversation's opening, up to and with the assistant's opener.

        Raises:
            UnsupportedContent: a message holds something other than text.
        """
        ...

    def read(self, completion: Sequence[int], tools: Sequence[ToolSpec]) -> AssistantTurn:
        """Parse a completion. Never raises: what cannot be parsed is a `ToolCall.error`."""
        ...

    def bridge(self, completion: Sequence[int], results: Sequence[Message]) -> list[int]:
        """The ids that follow ``completion`` up to the next turn's first sampled token.

        They begin with the end marker where the completion lacks one; that marker then counts
        as inserted, not sampled.

        Raises:
            TemplateNotAppendOnly: the template cannot continue a sampled turn by appending.
        """
        ...


# --- task and environment -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskSample:
    """One thing to play. ``row`` is the task's own data, handed to the environment's reset.

    All members of a group share it, so it is frozen all the way down: see `frozen`.
    """

    id: str
    seed: int
    row: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row", frozen(self.row))


class StepOutcome(NamedTuple):
    """What an environment answered to one tool call."""

    text: str
    reward: float
    done: bool


class Environment(Protocol):
    """One live instance of a task, used by exactly one trajectory."""

    async def reset(self, sample: TaskSample, member: int) -> str:
        """Begin the episode and return the first observation as text.

        Raises:
            EnvironmentFault, InfrastructureFailure: see below.
        """
        ...

    async def step(self, call: ToolCall) -> StepOutcome:
        """Execute one tool call.

        Raises:
            ToolError: the call is wrong; the model is told, the episode goes on.
            EnvironmentFault, InfrastructureFailure: see below.
        """
        ...

    async def close(self) -> None:
        """Return everything the instance holds. Idempotent."""
        ...


class EnvironmentFactory(Protocol):
    """Lends one `Environment` to each trajectory."""

    def lender(self) -> Lender[Environment]:
        """``make`` raises InfrastructureFailure."""
        ...

    async def close(self) -> None:
        """Return what the instances shared (executors, child processes)."""
        ...


class Harness(Protocol):
    """The stateful piece that a task may put between the model's text and the environment.

    It builds the prompt, reads the calls, words the answers, and may keep a memory or an
    external agent's state in between. One trajectory borrows one harness and nobody else sees
    it. Its methods may raise EnvironmentFault or InfrastructureFailure.
    """

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        """The conversation's opening, given the first observation."""
        ...

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        """What is to be executed of a turn, in order; none ends the episode as an answer."""
        ...

    async def answer(self, call: ToolCall, text: str) -> str:
        """What the model reads of a call's answer, or of its error."""
        ...

    async def close(self) -> None:
        """Return what the harness holds. Idempotent."""
        ...


class HarnessFactory(Protocol):
    """Lends one `Harness` to each trajectory."""

    def lender(self, metadata: Mapping[str, Any]) -> Lender[Harness]:
        """``metadata`` is the admission's, as it was given."""
        ...


class Task(Protocol):
    """What is played: prompt, tools, how an episode begins, how it is rewarded."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> Sequence[ToolSpec]: ...

    @property
    def unfinished_reward(self) -> float:
        """The reward of an episode that ended without the environment's ``done``."""
        ...

    def sample(self, seed: int) -> TaskSample:
        """The task sample of a seed. The same seed gives the same sample, in every process."""
        ...

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        """The conversation's opening, given the first observation; a harness may replace it."""
        ...


# --- failures -------------------------------------------------------------------------------


class RolloutError(Exception):
    """A failure attributed to one boundary. Its text is one line, fit for a user.

    Those that are a `UsageError` too are not an episode's failure: they end the run.
    """

    trace: str | None = None
    """The traceback of somebody else's code that raised, where it is known."""
    interrupts: bool = False
    """That code raised KeyboardInterrupt: the run ends as by a Ctrl-C."""


class ContextOverflow(RolloutError):  # noqa: N818 - a stop, not a fault
    """The server has no room for this context and one more token."""


class PolicyFailure(RolloutError):  # noqa: N818
    """Sampling failed for good. ``permanent`` when trying again cannot help."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class ToolError(RolloutError):
    """A tool call that the environment refuses; its text is the answer to the model."""


class EnvironmentFault(RolloutError):  # noqa: N818
    """The environment itself is wrong: it raised, or returned a reward that is not finite."""


class InfrastructureFailure(RolloutError):  # noqa: N818
    """What carries the environment failed: no instance to be had, lost session, deadline."""


class UnsupportedContent(RolloutError, UsageError):  # noqa: N818
    """The conversation holds an image, audio or video; mtrl is text only."""


class TemplateNotAppendOnly(RolloutError, UsageError):  # noqa: N818
    """The chat template cannot continue a sampled turn by appending."""


class RefusedTrajectory(RolloutError):  # noqa: N818
    """A token rule does not hold, so the trajectory must not be trained. ``reason`` counts it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
