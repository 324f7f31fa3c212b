"""One sandbox as a session: the game's process in it is started with the first reset.

The sandbox is known (and on record) before anything is done in it. What happens to it, and what
its process leaves unanswered, is infrastructure; only what the game itself raised or returned is
the environment's fault. An action is sent again only under the id that keeps it from being
executed twice; where that fails too, the session is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mtrl_cli.envs.e2b.link import Failed, Link, LinkBroken
from mtrl_cli.envs.e2b.program import Program
from mtrl_cli.envs.interface import Deadlines, OneClose, Reply, Usable
from mtrl_cli.errors import UsageError
from mtrl_cli.foreign import told
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    InfrastructureFailure,
    RolloutError,
    ToolError,
)


class UnusableProgram(RolloutError, UsageError):  # noqa: N818
    """The game cannot be loaded in a sandbox: no episode could be played."""


class SandboxSession:
    """`mtrl_cli.envs.interface.Session`.

    Args:
        sandbox: the SDK's ``AsyncSandbox``.
        end: ends the sandbox; raises InfrastructureFailure when it could not.
    """

    def __init__(
        self,
        sandbox: Any,
        program: Program,
        name: str,
        deadlines: Deadlines,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._sandbox = sandbox
        self._program = program
        self._name = name
        self._deadlines = deadlines
        self._end = end
        self._link: Link | None = None
        self._usable = Usable(f"{name} in sandbox {self.id}")
        self._closing = OneClose(self._close)

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return str(self._sandbox.sandbox_id)

    async def reset(self, arguments: Mapping[str, Any]) -> Reply:
        if self._link is None:
            await self._bounded("start", self._start(), self._deadlines.open)
        result = await self._ask("reset", arguments, self._deadlines.reset)
        return Reply(self._observation("reset", result))

    async def step(self, action: Mapping[str, Any]) -> Reply:
        result = await self._ask("step", action, self._deadlines.step)
        observation = self._observation("step", result)
        return Reply(observation, result.get("reward"), result.get("done", False))

    async def close(self) -> None:
        await self._closing.wait()

    async def _close(self) -> None:
        self._usable.end("it is closed")
        try:
            await self._end()
        finally:
            if self._link is not None:
                await self._link.close()

    async def _start(self) -> None:
        files = [{"path": path, "data": data} for path, data in self._program.files.items()]
        await self._sandbox.files.write_files(files, request_timeout=self._deadlines.open / 2)
        self._link = Link(self._sandbox)
        try:
            await self._link.open(self._program.command, self._deadlines.open)
        except Failed as failed:
            if failed.kind != "load":
                raise
            raise UnusableProgram(
                f"env.entrypoint: {self._name} cannot be loaded in a sandbox: {failed}; the files"
                " that it needs beside its own are listed in env.e2b.files"
            ) from failed

    async def _ask(
        self, operation: str, data: Mapping[str, Any], timeout: float
    ) -> Mapping[str, Any]:
        link = self._link
        if link is None:
            raise InfrastructureFailure(f"{self._name}: {operation} before the start")
        try:
            result: Mapping[str, Any] = await self._bounded(
                operation, link.ask(operation, data, timeout), timeout
            )
            return result
        except Failed as failed:
            if failed.kind == "tool":
                raise ToolError(str(failed)) from failed
            if failed.kind == "fault":
                fault = EnvironmentFault(f"{self._name}.{operation}: {failed}")
                fault.trace = failed.trace
                raise fault from failed
            self._usable.lose(f"{operation}: {failed}", failed)

    async def _bounded(self, operation: str, work: Awaitable[Any], timeout: float) -> Any:
        """Whatever is not the game's answer is the sandbox's failure, and its end."""
        try:
            self._usable.check(operation)
        except InfrastructureFailure:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        try:
            async with asyncio.timeout(timeout + 1.0):
                return await work
        except asyncio.CancelledError:
            self._usable.end(f"{operation} was cancelled")
            raise
        except (Failed, RolloutError):
            raise
        except TimeoutError as error:
            self._usable.lose(f"{operation} passed its deadline of {timeout:g} s", error)
        except LinkBroken as broken:
            self._usable.lose(f"{operation}: {broken}", broken)
        except Exception as error:
            self._usable.lose(f"{operation}: {told(error)}", error)

    def _observation(self, operation: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        observation = result.get("observation")
        if not isinstance(observation, Mapping):
            raise EnvironmentFault(
                f"{self._name}.{operation} returned {type(observation).__name__} for its"
                " observation, not an object"
            )
        return observation
