"""The tools that an environment offers itself, by MCP.

A task that does not bring its own tools has ``tools_offered`` set: it is given what the
environment lists before anything is played, and says itself how a call becomes an action.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard, cast

from mtrl_cli.envs.interface import TaskEnvironment
from mtrl_cli.errors import MtrlError
from mtrl_cli.foreign import line
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import EnvironmentFactory, RolloutError, Task
from mtrl_cli.rollout.resources import RolloutResources

LIST_TOOLS: Mapping[str, Any] = {"type": "list_tools"}
"""The action that asks an OpenEnv MCP environment for its tools."""


class TakesTools(Task, Protocol):
    """A task that is given its tools."""

    tools_offered: bool

    def take_tools(self, listing: Mapping[str, Any]) -> None:
        """Raises: UsageError: the listing holds no tools."""
        ...


def takes_tools(task: Task) -> TypeGuard[TakesTools]:
    return bool(getattr(task, "tools_offered", False))


async def offered_tools(envs: EnvironmentFactory, resources: RolloutResources) -> Mapping[str, Any]:
    """The observation that answers `LIST_TOOLS`, from an instance borrowed for it.

    Raises:
        MtrlError: there is none to be had, or it does not understand.
    """
    lender = cast("Lender[TaskEnvironment]", envs.lender())
    try:
        async with resources.scope("tools") as scope:
            environment = await scope.borrow(lender)
            reply = await scope.protect(environment.session.step(LIST_TOOLS), environment)
    except RolloutError as error:
        raise MtrlError(f"the environment does not list its tools: {line(error)}") from error
    return reply.observation
