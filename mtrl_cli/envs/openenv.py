"""OpenEnv environments in this process: one instance per trajectory.

The entrypoint names a subclass of OpenEnv's ``Environment``. Its synchronous ``reset`` and
``step`` run on worker threads (see `workers`), asynchronous ones on the event loop; every
operation has a deadline. What crosses to the rollout core is text, a finite reward and a
latched ``done``; what goes wrong is attributed: the environment raised or returned nonsense
(`EnvironmentFault`), or did not answer in time (`InfrastructureFailure`, and the instance is
never used again).
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.openenv_class import action_class, async_method, check_class, is_async
from mtrl_cli.envs.workers import Owner, StuckError, Workers
from mtrl_cli.errors import UsageError
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    Environment,
    EnvironmentFault,
    InfrastructureFailure,
    RolloutError,
    StepOutcome,
    TaskSample,
    ToolCall,
    ToolError,
)
from mtrl_cli.tasks.load import load_class

_NOT_TEXT = {"done", "reward", "metadata"}


class OpenEnvFactory:
    """`mtrl_cli.rollout.ports.EnvironmentFactory` over an ``Environment`` class.

    Raises:
        UsageError: the entrypoint cannot be loaded, or is no OpenEnv environment.
    """

    def __init__(
        self,
        entrypoint: str,
        adapter: TaskAdapter,
        *,
        threads: int = 4,
        open_timeout: float = 30.0,
        reset_timeout: float = 30.0,
        step_timeout: float = 30.0,
        close_timeout: float = 10.0,
    ) -> None:
        light_packages("openenv", "openenv.core", "openenv.core.env_server")
        self.environment_class: Any = load_class(entrypoint, "env.entrypoint")
        check_class(entrypoint, self.environment_class)
        _check_adapter(adapter)
        self.adapter = adapter
        self.action_class = action_class(entrypoint, self.environment_class)
        self.open_timeout = open_timeout
        self.reset_timeout = reset_timeout
        self.step_timeout = step_timeout
        self.close_timeout = close_timeout
        self.async_reset = is_async(self.environment_class, "reset")
        self.async_step = is_async(self.environment_class, "step")
        self.workers = Workers(
            threads,
            self.environment_class.__name__,
            exclusive=bool(
                getattr(self.environment_class, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)
            ),
        )

    def lender(self) -> Lender[Environment]:
        return Lender("env", lambda key: self.open(), lambda instance: instance.close())

    async def open(self) -> "OpenEnvInstance":
        instance = OpenEnvInstance(self, self.workers.bind())
        try:
            await instance.start()
        except BaseException:
            # Also when the waiter was cancelled: what the thread still makes is closed there.
            instance.abandon()
            raise
        return instance

    async def close(self) -> None:
        """Raises: InfrastructureFailure: instances are still busy; it names them."""
        await self.workers.close(self.close_timeout)
        if stuck := self.workers.stuck:
            raise InfrastructureFailure(
                f"{len(stuck)} {self.environment_class.__name__} instance(s) never came back"
                " from an operation that passed its deadline; their threads end with the process"
            )


class OpenEnvInstance:
    """One live environment. ``reset``, ``step`` and ``close`` as the port says."""

    def __init__(self, factory: OpenEnvFactory, owner: Owner) -> None:
        self._factory = factory
        self._name = factory.environment_class.__name__
        self._owner = owner
        self._environment: Any = None
        self._done = False
        self._started = False
        self._unusable: str | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        def make() -> None:
            self._environment = self._factory.environment_class()

        try:
            await self._run("open", make, self._factory.open_timeout)
        except EnvironmentFault as error:
            raise InfrastructureFailure(str(error)) from error

    async def reset(self, sample: TaskSample, member: int) -> str:
        factory = self._factory

        def arguments() -> dict[str, Any]:
            return dict(factory.adapter.reset_arguments(sample, member))

        if factory.async_reset:
            given = self._guarded("reset", arguments)
            observation = await self._await(
                "reset", lambda: async_method(self._environment, "reset")(**given)
            )
            outcome = self._guarded("reset", lambda: self._outcome(observation))
        else:
            outcome = await self._run(
                "reset",
                lambda: self._outcome(self._environment.reset(**arguments())),
                factory.reset_timeout,
            )
        self._done, self._started = outcome.done, True
        return str(outcome.text)

    async def step(self, call: ToolCall) -> StepOutcome:
        factory = self._factory
        if not self._started:
            raise EnvironmentFault(f"{self._name}: step before reset")
        if self._done:
            raise EnvironmentFault(f"{self._name}: step after the end of the episode")
        outcome: StepOutcome
        if factory.async_step:
            action = self._guarded("step", lambda: self._action(call))
            observation = await self._await(
                "step", lambda: async_method(self._environment, "step")(action)
            )
            outcome = self._guarded("step", lambda: self._outcome(observation))
        else:
            outcome = await self._run(
                "step",
                lambda: self._outcome(self._environment.step(self._action(call))),
                factory.step_timeout,
            )
        self._done = outcome.done
        return outcome

    async def close(self) -> None:
        """Idempotent: every caller waits for the same end.

        Raises:
            InfrastructureFailure: it did not close, or not in time.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    def abandon(self) -> None:
        """Close without waiting, and without a word: the failure that led here is reported."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
            self._closing.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _close(self) -> None:
        workers = self._factory.workers
        self._unusable = self._unusable or "it is closed"

        def end() -> None:
            environment, self._environment = self._environment, None
            if environment is not None:
                environment.close()

        try:
            await workers.run(self._owner, end, self._factory.close_timeout, essential=True)
        except StuckError as error:
            raise InfrastructureFailure(
                f"{self._name} did not close: its thread is busy past the deadline"
                f" ({self._unusable}); it is closed when the thread comes back"
            ) from error
        except Exception as error:
            raise InfrastructureFailure(
                f"{self._name}.close raised {type(error).__name__}: {_line(error)}"
            ) from error
        finally:
            workers.release(self._owner)

    # --- one operation --------------------------------------------------------------------------

    async def _run(self, operation: str, work: Callable[[], Any], timeout: float) -> Any:
        """On the worker thread."""
        self._check_usable(operation)
        try:
            return await self._factory.workers.run(self._owner, work, timeout)
        except StuckError as error:
            self._unusable = f"{operation} passed its deadline of {timeout:g} s"
            raise InfrastructureFailure(f"{self._name}: {self._unusable}") from error
        except asyncio.CancelledError:
            self._unusable = self._unusable or f"{operation} was cancelled"
            raise
        except RolloutError:
            raise
        except BaseException as error:
            raise self._fault(operation, error) from error

    async def _await(self, operation: str, start: Callable[[], Any]) -> Any:
        """On the event loop."""
        self._check_usable(operation)
        factory = self._factory
        timeout = factory.reset_timeout if operation == "reset" else factory.step_timeout
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                return await start()
        except asyncio.CancelledError:
            self._unusable = f"{operation} was cancelled"
            raise
        except RolloutError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                self._unusable = f"{operation} passed its deadline of {timeout:g} s"
                raise InfrastructureFailure(f"{self._name}: {self._unusable}") from error
            raise self._fault(operation, error) from error

    def _guarded(self, operation: str, work: Callable[[], Any]) -> Any:
        """The task's and the environment's own code, run in place."""
        try:
            return work()
        except RolloutError:
            raise
        except Exception as error:
            raise self._fault(operation, error) from error

    def _check_usable(self, operation: str) -> None:
        if self._unusable is not None:
            raise InfrastructureFailure(f"{self._name}: no {operation}, {self._unusable}")

    def _fault(self, operation: str, error: BaseException) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self._name}.{operation} raised {type(error).__name__}: {_line(error)}"
        )

    # --- data -----------------------------------------------------------------------------------

    def _action(self, call: ToolCall) -> Any:
        """Raises: ToolError: the action class does not take the call's values."""
        factory = self._factory
        fields = factory.adapter.action(call)
        if isinstance(fields, factory.action_class):
            return fields
        from pydantic import ValidationError

        try:
            return factory.action_class(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(step) for step in first["loc"])
            raise ToolError(f"The argument {where!r} is wrong: {first['msg']}") from error

    def _outcome(self, observation: Any) -> StepOutcome:
        """Raises: EnvironmentFault: the reward is no finite number."""
        if not hasattr(observation, "model_dump"):
            raise EnvironmentFault(
                f"{self._name} returned {type(observation).__name__}, not an Observation"
            )
        reward = _reward(self._name, observation.reward)
        fields: Mapping[str, Any] = observation.model_dump(exclude=_NOT_TEXT)
        text = self._factory.adapter.observation_text(fields)
        return StepOutcome(str(text), reward, bool(observation.done))


def _reward(name: str, reward: Any) -> float:
    """Raises: EnvironmentFault."""
    if reward is None:
        return 0.0
    try:
        value = float(reward)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(f"{name} returned the reward {reward!r}, not a number") from error
    if not math.isfinite(value):
        raise EnvironmentFault(f"{name} returned the reward {value}, which is not finite")
    return value


def _check_adapter(adapter: Any) -> None:
    """Raises: UsageError."""
    names = ("reset_arguments", "action", "observation_text")
    missing = [name for name in names if not callable(getattr(adapter, name, None))]
    if missing:
        raise UsageError(
            f"task class {type(adapter).__name__!r} lacks {', '.join(missing)}; see"
            " docs/custom-task.md"
        )


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "(no message)"
