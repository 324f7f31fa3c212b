"""An action that its class does not take: whose mistake it is.

The model answers for what it may say: an argument that it left out, a value that does not fit, a
name that its tool does not have. What ``action()`` made of a call is the task's: a field that the
class does not have and no call has said, or one that it needs and no call could give. Told as the
model's mistake, that would be the same answer to every call, and nobody would look at the task.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.rollout.ports import ToolCall, ToolError, ToolSpec


class ActionRefusedError(ToolError):
    """An environment's class of actions did not take one. ``lacking``: fields that it needs and
    that were not there; ``unknown``: fields that it does not have."""

    def __init__(self, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(_words(errors))
        self.lacking = _named(errors, "missing")
        self.unknown = _named(errors, "extra_forbidden")


def misnamed(refused: ActionRefusedError, call: ToolCall, tools: Sequence[ToolSpec]) -> str | None:
    """What in an action only the task can have done wrong, in words; None where it may have been
    the model's doing.

    Args:
        call: what the action was made of; it fits its tool's schema.
    """
    given, offered = call.arguments.keys(), _arguments(tools, call.name)
    told = [
        f"{name!r} is no field of it"
        for name in sorted(refused.unknown)
        if name not in given or name in offered
    ] + [
        f"its field {name!r} is missing"
        for name in sorted(refused.lacking)
        if name in given or (name not in offered and given >= offered)
    ]
    return ", ".join(told) or None


def _arguments(tools: Sequence[ToolSpec], name: str) -> set[str]:
    """The names of a tool's arguments."""
    functions = (tool.get("function", tool) for tool in tools)
    schemas = (one.get("parameters") or {} for one in functions if one.get("name") == name)
    return {argument for schema in schemas for argument in schema.get("properties") or ()}


def _named(errors: Sequence[Mapping[str, Any]], kind: str) -> frozenset[str]:
    """The fields at the top of which pydantic says so."""
    places = (_place(error) for error in errors if error.get("type") == kind)
    return frozenset(str(place[0]) for place in places if len(place) == 1)


def _words(errors: Sequence[Mapping[str, Any]]) -> str:
    """What the model is told of pydantic's findings: the first of them."""
    first: Mapping[str, Any] = errors[0] if errors else {}
    where = ".".join(map(str, _place(first)))
    message = first.get("msg", "it does not fit")
    return f"The argument {where!r} is wrong: {message}" if where else f"It is wrong: {message}"


def _place(error: Mapping[str, Any]) -> Sequence[Any]:
    """Where it is, from the top; an answer of a server may hold anything there."""
    place = error.get("loc")
    return place if isinstance(place, list | tuple) else ()
