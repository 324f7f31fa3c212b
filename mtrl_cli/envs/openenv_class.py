"""What an OpenEnv ``Environment`` class says about itself, judged before it is used."""

import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from mtrl_cli.envs.misnamed import ActionRefusedError
from mtrl_cli.errors import UsageError
from mtrl_cli.foreign import written_at


def check_class(entrypoint: str, environment_class: Any) -> None:
    """Raises: UsageError."""
    from openenv.core.env_server.interfaces import Environment

    if not issubclass(environment_class, Environment):
        raise UsageError(
            f"env.entrypoint {entrypoint!r}: it is not an OpenEnv environment; derive it from"
            " openenv.core.env_server.interfaces.Environment"
        )
    missing = sorted(getattr(environment_class, "__abstractmethods__", ()))
    if missing:
        raise UsageError(f"env.entrypoint {entrypoint!r}: it lacks {', '.join(missing)}")


class ActionReader:
    """From an action's fields to the object that ``step`` takes.

    Raises:
        UsageError: the environment does not say which actions it takes.
    """

    def __init__(self, entrypoint: str, environment_class: Any) -> None:
        self._mcp = is_mcp(environment_class)
        self.action_class: Any = None if self._mcp else action_class(entrypoint, environment_class)

    def __call__(self, fields: Mapping[str, Any]) -> Any:
        """Raises: ActionRefusedError: the action class does not take these values."""
        from pydantic import ValidationError

        try:
            return self._class_for(fields)(**fields)
        except ValidationError as error:
            raise ActionRefusedError(error.errors()) from error

    def _class_for(self, fields: Mapping[str, Any]) -> Any:
        if not self._mcp:
            return self.action_class
        from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction

        return ListToolsAction if fields.get("type") == "list_tools" else CallToolAction


def is_mcp(environment_class: Any) -> bool:
    """Whether its actions are MCP tool calls; asked by name, as the class's module is heavy."""
    return any(
        base.__name__ == "MCPEnvironment" and base.__module__.startswith("openenv.")
        for base in environment_class.__mro__
    )


def action_class(entrypoint: str, environment_class: Any) -> Any:
    """The class of the actions that ``step`` takes.

    Raises:
        UsageError: the environment does not say.
    """
    from openenv.core.env_server.types import Action

    found = _said(environment_class, "action_class", 0, "action", Action)
    if found is not None:
        return found
    raise UsageError(
        f"env.entrypoint {entrypoint!r}: it does not say which actions it takes; annotate"
        " step(self, action: YourAction) or set action_class = YourAction"
    )


def observation_class(environment_class: Any) -> Any:
    """The class of what ``step`` returns, as far as the environment says."""
    from openenv.core.env_server.types import Observation

    return _said(environment_class, "observation_class", 1, "return", Observation) or Observation


def _said(environment_class: Any, attribute: str, argument: int, hint: str, base: type) -> Any:
    """A subclass of ``base`` that the class names: by an attribute, as an argument of its generic
    base, in the annotations of ``step``; None when it does not."""
    candidates = [getattr(environment_class, attribute, None)]
    for parent in environment_class.__mro__:
        for generic in getattr(parent, "__orig_bases__", ()):
            candidates.extend(get_args(generic)[argument : argument + 1])
    try:
        candidates.append(get_type_hints(environment_class.step).get(hint))
    except Exception:  # annotations may name what is imported for type checkers only
        candidates.append(environment_class.step.__annotations__.get(hint))
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, base) and candidate is not base:
            return candidate
    return None


def accepted(environment_class: Any) -> frozenset[str] | None:
    """The keyword arguments that ``reset`` takes; None when it takes any."""
    asynchronous = is_async(environment_class, "reset")
    used = async_method(environment_class, "reset") if asynchronous else environment_class.reset
    parameters = inspect.signature(used).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def is_async(environment_class: Any, method: str) -> bool:
    from openenv.core.env_server.interfaces import Environment

    name = f"{method}_async"
    return getattr(environment_class, name) is not getattr(
        Environment, name
    ) or inspect.iscoroutinefunction(getattr(environment_class, method))


def async_method(environment: Any, method: str) -> Any:
    """``step`` itself where it is a coroutine function, else ``step_async``; of a class, too."""
    plain = getattr(environment, method)
    return plain if inspect.iscoroutinefunction(plain) else getattr(environment, f"{method}_async")


def written(environment_class: Any, operation: str) -> str:
    """`` (FILE:LINE)`` of the method that a class has for an operation; empty where that is not
    written in Python."""
    waits = is_async(environment_class, operation)
    own = async_method if waits else getattr
    return written_at(own(environment_class, operation))
