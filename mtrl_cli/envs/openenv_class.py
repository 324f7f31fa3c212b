"""What an OpenEnv ``Environment`` class says about itself, judged before it is used."""

import inspect
from typing import Any, get_args, get_type_hints

from mtrl_cli.errors import UsageError


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


def action_class(entrypoint: str, environment_class: Any) -> Any:
    """The class of the actions that ``step`` takes.

    Raises:
        UsageError: the environment does not say.
    """
    from openenv.core.env_server.types import Action

    candidates = [getattr(environment_class, "action_class", None)]
    for base in environment_class.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            candidates.extend(get_args(generic)[:1])
    try:
        candidates.append(get_type_hints(environment_class.step).get("action"))
    except Exception:  # annotations may name what is imported for type checkers only
        candidates.append(environment_class.step.__annotations__.get("action"))
    for candidate in candidates:
        if (
            isinstance(candidate, type)
            and issubclass(candidate, Action)
            and candidate is not Action
        ):
            return candidate
    raise UsageError(
        f"env.entrypoint {entrypoint!r}: it does not say which actions it takes; annotate"
        " step(self, action: YourAction) or set action_class = YourAction"
    )


def is_async(environment_class: Any, method: str) -> bool:
    from openenv.core.env_server.interfaces import Environment

    name = f"{method}_async"
    return getattr(environment_class, name) is not getattr(
        Environment, name
    ) or inspect.iscoroutinefunction(getattr(environment_class, method))


def async_method(environment: Any, method: str) -> Any:
    """``step`` itself where it is a coroutine function, else ``step_async``."""
    plain = getattr(environment, method)
    return plain if inspect.iscoroutinefunction(plain) else getattr(environment, f"{method}_async")
