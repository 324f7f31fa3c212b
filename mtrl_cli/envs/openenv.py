"""OpenEnv environments in this process: one instance per trajectory.

The entrypoint names a subclass of OpenEnv's ``Environment``. Its synchronous ``reset`` and
``step`` run on worker threads (see `workers`), asynchronous ones on the event loop; every
operation has a deadline. What goes wrong is attributed as `interface` says: the environment
raised or returned nonsense (`EnvironmentFault`), or did not answer in time (`SessionLost`, and
the instance is never used again).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.interface import (
    Deadlines,
    OneClose,
    Reply,
    Rules,
    TaskEnvironment,
    Usable,
    Watch,
    check_adapter,
    raised,
)
from mtrl_cli.envs.openenv_class import (
    ActionReader,
    accepted,
    async_method,
    check_class,
    is_async,
    written,
)
from mtrl_cli.envs.workers import Owner, StuckError, Workers, WorkRaised
from mtrl_cli.foreign import text_of
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    Environment,
    EnvironmentFault,
    InfrastructureFailure,
    RolloutError,
)
from mtrl_cli.rollout.settle import is_being_cancelled
from mtrl_cli.rollout.task_fault import may_be_the_users, running
from mtrl_cli.tasks.load import load_class

_NOT_OBSERVED = {"done", "reward", "metadata"}


class OpenEnvFactory:
    """`mtrl_cli.rollout.ports.EnvironmentFactory` over an ``Environment`` class.

    Args:
        params: keyword arguments of the class.

    Raises:
        UsageError: the entrypoint cannot be loaded, or is no OpenEnv environment.
    """

    def __init__(
        self,
        entrypoint: str,
        adapter: TaskAdapter,
        *,
        params: Mapping[str, Any] | None = None,
        threads: int = 4,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        rules: Rules = Rules(),  # noqa: B008 - frozen
        watch: Watch | None = None,
    ) -> None:
        light_packages("openenv", "openenv.core", "openenv.core.env_server")
        check_adapter(adapter)
        self.environment_class: Any = load_class(entrypoint, "env.entrypoint")
        check_class(entrypoint, self.environment_class)
        self.name: str = self.environment_class.__name__
        self.params = dict(params or {})
        self.read_action = ActionReader(entrypoint, self.environment_class)
        self.deadlines = deadlines
        self._accepted = accepted(self.environment_class)
        self.async_reset = is_async(self.environment_class, "reset")
        self.async_step = is_async(self.environment_class, "step")
        self.workers = Workers(
            threads,
            self.name,
            exclusive=bool(
                getattr(self.environment_class, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)
            ),
        )
        self._adapter, self._rules, self._watch = adapter, rules, watch or Watch()
        self._lender: Lender[Environment] = Lender(
            "env", lambda key: self.open(), lambda instance: instance.close()
        )

    def lender(self) -> Lender[Environment]:
        return self._lender

    async def open(self) -> TaskEnvironment:
        session = EmbeddedSession(self, self.workers.bind())
        try:
            await session.start()
        except BaseException:
            # Also when the waiter was cancelled: what the thread still makes is closed there.
            session.abandon()
            raise
        return TaskEnvironment(session, self._adapter, self.name, self._rules, self._watch)

    def reset_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those that ``reset`` takes; OpenEnv's server drops the others too."""
        if self._accepted is None or self._accepted.issuperset(arguments):
            return arguments
        dropped = sorted(set(arguments) - self._accepted)
        self._watch.saw(
            "reset_arguments_dropped", f"{self.name}.reset does not take {', '.join(dropped)}"
        )
        return {key: value for key, value in arguments.items() if key in self._accepted}

    async def close(self) -> None:
        """Raises: InfrastructureFailure: instances are still busy; it names them."""
        await self.workers.close(self.deadlines.close)
        if stuck := self.workers.stuck:
            raise InfrastructureFailure(
                f"{len(stuck)} {self.name} instance(s) never came back"
                " from an operation that passed its deadline; their threads end with the process"
            )


class EmbeddedSession:
    """One live environment; `mtrl_cli.envs.interface.Session`."""

    def __init__(self, factory: OpenEnvFactory, owner: Owner) -> None:
        self._factory = factory
        self._name = factory.name
        self._owner = owner
        self._environment: Any = None
        self._usable = Usable(factory.name)
        self._closing = OneClose(self._close)

    async def start(self) -> None:
        factory = self._factory

        def make() -> None:
            self._environment = factory.environment_class(**factory.params)

        try:
            await self._run("open", make, factory.deadlines.open)
        except EnvironmentFault as error:
            failure = InfrastructureFailure(str(error))
            failure.trace = error.trace
            raise failure from error

    async def reset(self, arguments: Mapping[str, Any]) -> Reply:
        factory = self._factory
        arguments = factory.reset_arguments(arguments)
        if factory.async_reset:
            return await self._await(
                "reset", lambda: async_method(self._environment, "reset")(**arguments)
            )
        reply: Reply = await self._run(
            "reset",
            lambda: self._reply("reset", self._environment.reset(**arguments)),
            factory.deadlines.reset,
        )
        return reply

    async def step(self, action: Mapping[str, Any]) -> Reply:
        factory = self._factory
        if factory.async_step:
            given = factory.read_action(action)
            return await self._await("step", lambda: async_method(self._environment, "step")(given))
        reply: Reply = await self._run(
            "step",
            lambda: self._reply("step", self._environment.step(factory.read_action(action))),
            factory.deadlines.step,
        )
        return reply

    async def close(self) -> None:
        await self._closing.wait()

    def abandon(self) -> None:
        """Close without waiting."""
        self._closing.begin()

    async def _close(self) -> None:
        workers = self._factory.workers
        self._usable.end("it is closed")

        def end() -> None:
            environment, self._environment = self._environment, None
            if environment is not None:
                environment.close()

        try:
            await workers.run(self._owner, end, self._factory.deadlines.close, essential=True)
        except StuckError as error:
            raise InfrastructureFailure(
                f"{self._name} did not close: its thread is busy past the deadline"
                f" ({self._usable.reason}); it is closed when the thread comes back"
            ) from error
        except WorkRaised as failed:
            fault = self._raised("close", failed.error)
            raise InfrastructureFailure(str(fault)) from failed.error
        finally:
            workers.release(self._owner)

    # --- one operation --------------------------------------------------------------------------

    async def _run(self, operation: str, work: Callable[[], Any], timeout: float) -> Any:
        """On the worker thread."""
        self._usable.check(operation)
        try:
            return await self._factory.workers.run(self._owner, work, timeout)
        except StuckError as error:
            self._usable.lose(f"{operation} passed its deadline of {timeout:g} s", error)
        except asyncio.CancelledError:
            self._usable.end(f"{operation} was cancelled")
            raise
        except WorkRaised as failed:
            if isinstance(failed.error, RolloutError) and text_of(failed.error) is not None:
                raise failed.error from failed.error.__cause__
            raise self._raised(operation, failed.error) from failed.error

    async def _await(self, operation: str, start: Callable[[], Any]) -> Reply:
        """On the event loop."""
        self._usable.check(operation)
        deadlines = self._factory.deadlines
        timeout = deadlines.reset if operation == "reset" else deadlines.step
        deadline, begun = asyncio.timeout(timeout), running()
        try:
            async with deadline:
                return self._reply(operation, await start())
        except asyncio.CancelledError as error:
            if not is_being_cancelled():
                raise self._raised(operation, error) from error
            self._usable.end(f"{operation} was cancelled")
            raise
        except BaseException as error:
            if isinstance(error, GeneratorExit) and running() is not begun:
                raise  # the coroutine is being closed
            if isinstance(error, RolloutError) and text_of(error) is not None:
                raise
            if isinstance(error, KeyboardInterrupt) and may_be_the_users():
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                self._usable.lose(f"{operation} passed its deadline of {timeout:g} s", error)
            raise self._raised(operation, error) from error

    def _raised(self, operation: str, error: BaseException) -> EnvironmentFault:
        return raised(self._name, operation, error, self._factory.environment_class)

    def _reply(self, operation: str, observation: Any) -> Reply:
        """Raises: EnvironmentFault: it is no observation."""
        if not hasattr(observation, "model_dump"):
            given = "None" if observation is None else type(observation).__name__
            where = written(self._factory.environment_class, operation)
            raise EnvironmentFault(
                f"{self._name}.{operation} returned {given}, not an Observation{where}"
            )
        fields: Mapping[str, Any] = observation.model_dump(exclude=_NOT_OBSERVED)
        return Reply(fields, observation.reward, observation.done)
