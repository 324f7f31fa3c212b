"""What every environment backend shares, once.

A backend makes *sessions*: one live instance of an environment each, spoken to in plain data
(`Session`). It bounds every operation by its `Deadlines` and attributes what goes wrong:

- `EnvironmentFault`: the environment raised, or its answer makes no sense;
- `InfrastructureFailure`: no instance is to be had, or an operation did not end in time;
- `SessionLost`, one kind of it: there was a session, and what it would answer next is unknown.

`TaskEnvironment` is what the rollout core plays, over the session of any backend. It puts the
task's words around the session's data and keeps the rules that no backend may keep in its own
way: ``done`` is latched, no reward is 0, a reward is a number of bearable size and counted once, an
observation has a greatest length, a session that was lost is not used again.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.misnamed import ActionRefusedError, misnamed
from mtrl_cli.errors import UsageError
from mtrl_cli.foreign import shown, text_of, told, written_at
from mtrl_cli.rollout.held import LARGEST_REWARD
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    InfrastructureFailure,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)
from mtrl_cli.rollout.task_fault import TaskFault, fields, own_code, place, text, traceback_of


class SessionLost(InfrastructureFailure):
    """A session ended, or its next answer could belong to another question."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's answer to a reset or a step, as it came."""

    observation: Mapping[str, Any]
    reward: Any = None
    done: Any = False


class Session(Protocol):
    """One live environment. Its operations bound themselves in time and never overlap."""

    async def reset(self, arguments: Mapping[str, Any]) -> Reply:
        """Begin an episode.

        Raises:
            EnvironmentFault, InfrastructureFailure
        """
        ...

    async def step(self, action: Mapping[str, Any]) -> Reply:
        """Act.

        Raises:
            ToolError: the environment does not take the action; nothing happened.
            EnvironmentFault, InfrastructureFailure
        """
        ...

    async def close(self) -> None:
        """Return what the session holds. Idempotent.

        Raises:
            InfrastructureFailure: it is not known to be returned.
        """
        ...


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that each operation may take."""

    open: float = 30.0
    reset: float = 30.0
    step: float = 30.0
    close: float = 10.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says of rewards and observations."""

    reward: Literal["sum", "final"] = "sum"
    """``sum``: the rewards of all steps add up. ``final``: the reward of the step that ends the
    episode is the episode's, and what came before is not counted."""
    max_observation: int = 20_000
    """Characters of an observation that the model reads."""


@dataclass(slots=True)
class Watch:
    """What the backends of a run saw beside the episodes, counted; the first of a kind is told."""

    tell: Callable[[str], None] = lambda text: None
    counts: "Counter[str]" = field(default_factory=Counter)

    def saw(self, kind: str, text: str | None = None) -> None:
        """Count ``kind``; ``text`` is one line for a person, told the first time."""
        self.counts[kind] += 1
        if text is not None and self.counts[kind] == 1:
            self.tell(text)


class TaskEnvironment:
    """`mtrl_cli.rollout.ports.Environment` over a session and a task's words.

    Args:
        name: the environment, in error messages.
    """

    def __init__(
        self, session: Session, adapter: TaskAdapter, name: str, rules: Rules, watch: Watch
    ) -> None:
        self.session = session
        self._adapter = adapter
        self._name = name
        self._rules = rules
        self._watch = watch
        self._started = False
        self._done = False
        self._earlier: list[float] = []
        """The rewards before the last step, without zeros."""

    async def reset(self, sample: TaskSample, member: int) -> str:
        with own_code(self._adapter, "reset_arguments"):
            arguments = fields(self._adapter.reset_arguments(sample, member))
        self._started, self._earlier = False, []
        reply = await self._counted(self.session.reset, arguments)
        outcome = self._outcome(reply)
        if outcome.done:
            raise EnvironmentFault(f"{self._name}.reset returned an episode that is over")
        self._started = True
        return outcome.text

    async def step(self, call: ToolCall) -> StepOutcome:
        if not self._started:
            raise EnvironmentFault(f"{self._name}: step before reset")
        if self._done:
            raise EnvironmentFault(f"{self._name}: step after the end of the episode")
        try:
            reply = await self._counted(self.session.step, self._action(call))
        except ToolError as refused:
            if isinstance(refused, ActionRefusedError):
                self._check_named(call, refused)
            raise ToolError(self._cut(str(refused))) from refused
        outcome = self._outcome(reply)
        return StepOutcome(outcome.text, self._counting(outcome), outcome.done)

    async def close(self) -> None:
        await self.session.close()

    def _action(self, call: ToolCall) -> Mapping[str, Any]:
        with own_code(self._adapter, "action"):
            try:
                return fields(self._adapter.action(call))
            except ToolError as error:  # an answer to the model, and no fault
                if text_of(error) is None:
                    raise
                refused = error
        raise refused

    def _check_named(self, call: ToolCall, refused: ActionRefusedError) -> None:
        """Raises: TaskFault: it is the task's own mistake, see `misnamed`."""
        tools = getattr(self._adapter, "tools", ())
        if told := misnamed(refused, call, tools):
            where = written_at(self._adapter.action)
            raise TaskFault(
                f"{type(self._adapter).__name__}.action returned no action of {self._name}: "
                f"{told}{where}",
                traceback_of(refused),
            ) from refused

    async def _counted(
        self, operation: "Callable[[Mapping[str, Any]], Any]", data: Mapping[str, Any]
    ) -> Reply:
        try:
            reply: Reply = await operation(data)
        except SessionLost as lost:
            self._watch.saw("sessions_lost", f"a session was lost: {lost}")
            raise
        return reply

    def _outcome(self, reply: Reply) -> StepOutcome:
        """Raises: EnvironmentFault: the reply makes no sense, or the task cannot read it."""
        self._done = finished(self._name, reply.done)
        reward = finite(self._name, reply.reward)
        with own_code(self._adapter, "observation_text"):
            read = text(self._adapter.observation_text(reply.observation))
        return StepOutcome(self._cut(read), reward, self._done)

    def _counting(self, outcome: StepOutcome) -> float:
        """What of a step's reward counts; see `Rules.reward`."""
        if self._rules.reward == "final":
            return outcome.reward if outcome.done else 0.0
        if outcome.done and self._earlier and math.isclose(sum(self._earlier), outcome.reward):
            self._watch.saw(
                "rewards_perhaps_counted_twice",
                f"{self._name}: the last reward of an episode ({outcome.reward:g}) is the sum of"
                " the ones before it, and they are added up; if the environment reports the total"
                " at the end, write env.reward: final",
            )
        if outcome.reward:
            self._earlier.append(outcome.reward)
        return outcome.reward

    def _cut(self, text: str) -> str:
        most = self._rules.max_observation
        if len(text) <= most:
            return text
        self._watch.saw(
            "observations_cut",
            f"{self._name}: an observation of {len(text):,} characters was cut to"
            f" env.max_observation = {most:,}",
        )
        return f"{text[:most]}\n[cut here: {len(text) - most:,} more characters]"


def finite(name: str, reward: Any) -> float:
    """A reward as a number; none is 0.

    Raises:
        EnvironmentFault: it is no number, not finite, or larger than `LARGEST_REWARD`.
    """
    if reward is None:
        return 0.0
    try:
        if isinstance(reward, str | bytes):
            raise TypeError
        value = float(reward)
    except BaseException as error:  # a tensor of two elements raises RuntimeError, and so on
        raise EnvironmentFault(
            f"{name} returned the reward {shown(reward)}, not a number"
        ) from error
    if not math.isfinite(value):
        raise EnvironmentFault(f"{name} returned the reward {value}, which is not finite")
    if abs(value) > LARGEST_REWARD:
        raise EnvironmentFault(
            f"{name} returned the reward {value:g}, of more than {LARGEST_REWARD:g}: return rewards"
            " of about the size of 1"
        )
    return value


def finished(name: str, done: Any) -> bool:
    """Raises: EnvironmentFault: it is neither true nor false."""
    if done is None or isinstance(done, bool | int):
        return bool(done)
    if type(done).__name__ in ("bool_", "bool"):  # numpy's
        return bool(done)
    raise EnvironmentFault(f"{name} returned {shown(done)} for done, not true or false")


def raised(name: str, operation: str, error: BaseException, owner: type) -> EnvironmentFault:
    """The code of ``owner``, an environment's class, raised ``error``."""
    fault = EnvironmentFault(f"{name}.{operation} raised {told(error)}{place(owner, error)}")
    fault.trace = traceback_of(error)
    return fault


def check_adapter(adapter: Any) -> None:
    """Raises: UsageError: the task lacks the methods that a backend asks for."""
    names = ("reset_arguments", "action", "observation_text")
    missing = [name for name in names if not callable(getattr(adapter, name, None))]
    if missing:
        raise UsageError(
            f"task class {type(adapter).__name__!r} lacks {', '.join(missing)}; see"
            " docs/custom-task.md"
        )


class Usable:
    """Whether a session may still be asked; the first reason against it stays."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reason: str | None = None

    def check(self, operation: str) -> None:
        """Raises: SessionLost."""
        if self.reason is not None:
            raise SessionLost(f"{self._name}: no {operation}, {self.reason}")

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason

    def lose(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """Raises: SessionLost."""
        self.end(reason)
        raise SessionLost(f"{self._name}: {reason}") from error


class OneClose:
    """A close that runs once, whoever asks and however often; each caller waits for its end."""

    def __init__(self, close: Callable[[], Any]) -> None:
        self._close = close
        self._closing: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        await asyncio.shield(self._begun())

    def begin(self) -> None:
        """Close without waiting, and without a word: what led here is reported already."""
        self._begun().add_done_callback(lambda task: task.cancelled() or task.exception())

    def _begun(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return self._closing
