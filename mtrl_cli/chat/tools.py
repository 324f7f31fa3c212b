"""Reading tool calls: what a model wrote, checked against what the tools take.

A call that cannot be executed is not a failure of the episode but an answer to the model: every
`ToolCall.error` says what was wrong and what to write instead, in a line short enough for a
small model's context.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtrl_cli.chat.errors import ChatConfigError
from mtrl_cli.rollout.ports import ToolCall, ToolSpec

if TYPE_CHECKING:
    from jsonschema.protocols import Validator  # type: ignore[import-untyped]

MAX_DEPTH = 32
"""Deepest nesting of arguments that is handed on; more breaks recursive consumers."""

_QUOTED = 80
"""Most characters of the model's own text that an error repeats."""

_REMEMBERED_CALLS = 1024


def _quote(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "…"


def signature(name: str, schema: Mapping[str, Any]) -> str:
    """A tool's call in one line, such as ``play(action: "hit" | "stand")``."""
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    parts = []
    for argument, kind in properties.items():
        kind = kind if isinstance(kind, Mapping) else {}
        if "enum" in kind:
            takes = " | ".join(json.dumps(value, ensure_ascii=False) for value in kind["enum"])
        else:
            takes = kind.get("type", "any")
            takes = " | ".join(takes) if isinstance(takes, list) else str(takes)
        parts.append(f"{argument}{'' if argument in required else '?'}: {takes}")
    return f"{name}({', '.join(parts)})"


@dataclass(frozen=True)
class _Tool:
    name: str
    schema: Mapping[str, Any]
    signature: str
    validator: "Validator"


def _compile(spec: ToolSpec) -> _Tool:
    """Raises: ChatConfigError."""
    function = spec.get("function", spec)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ChatConfigError(
            'a tool has no name: write {"type": "function", "function": {"name": …}}'
        )
    schema = function.get("parameters") or {"type": "object", "properties": {}}

    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]
    from referencing import Registry

    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ChatConfigError(f"tool {name!r}: its parameters must be a schema of type object")
    validator_class = validator_for(schema)
    try:
        validator_class.check_schema(schema)
    except SchemaError as error:
        raise ChatConfigError(
            f"tool {name!r}: its parameters are not a JSON schema: {error.message}"
        ) from error
    # An empty registry keeps a ``$ref`` from being fetched over the network.
    validator: Validator = validator_class(schema, registry=Registry())
    return _Tool(name, schema, signature(name, schema), validator)


class ToolReader:
    """The tools of one conversation, ready to check calls.

    Raises:
        ChatConfigError: a tool has no name, a name twice, or parameters that are no schema.
    """

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._tools: dict[str, _Tool] = {}
        for spec in specs:
            tool = _compile(spec)
            if tool.name in self._tools:
                raise ChatConfigError(f"two tools are named {tool.name!r}: rename one")
            self._tools[tool.name] = tool
        self._good: set[tuple[Any, ...]] = set()
        """Calls found good before: many worlds have few actions."""
        self._offer = "; ".join(tool.signature for tool in self._tools.values())

    def broken(self, name: str | None, reason: str) -> ToolCall:
        """A call that could not be read at all."""
        return ToolCall(name or "", {}, f"{reason}. Call {self._offer or 'no tool: there is none'}")

    def call(self, name: Any, arguments: Any) -> ToolCall:
        """A call that was read as ``name`` and ``arguments``, checked. Never raises."""
        if not isinstance(name, str):
            return self.broken(None, "The tool's name must be a string")
        tool = self._tools.get(name)
        if tool is None:
            return self.broken(name, f"There is no tool named {_quote(name)!r}")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            kind = "a string" if isinstance(arguments, str) else "something else"
            return self._refused(tool, f"The arguments must be a JSON object, not {kind}")
        key = _small_key(name, arguments)
        if key in self._good:
            return ToolCall(name, arguments)
        try:
            unsafe = _unsafe(arguments)
            error = unsafe or self._mismatch(tool, arguments)
        except Exception as failure:
            # A schema can hold what only shows on use, such as a reference to nowhere.
            error = f"The arguments could not be checked ({type(failure).__name__})"
        if error:
            return self._refused(tool, error, None if unsafe else arguments)
        if key is not None and len(self._good) < _REMEMBERED_CALLS:
            self._good.add(key)
        return ToolCall(name, arguments)

    def _refused(
        self, tool: _Tool, reason: str, arguments: Mapping[str, Any] | None = None
    ) -> ToolCall:
        return ToolCall(tool.name, arguments or {}, f"{reason}. Call {tool.signature}")

    def _mismatch(self, tool: _Tool, arguments: dict[str, Any]) -> str | None:
        error = next(_ordered(tool.validator.iter_errors(arguments)), None)
        if error is None:
            return None
        where = ".".join(str(step) for step in error.absolute_path)
        if error.validator == "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            return f"The argument {'.'.join(filter(None, (where, missing[0])))!r} is missing"
        if error.validator == "additionalProperties" and isinstance(error.instance, dict):
            known = error.schema.get("properties", {})
            extra = next((key for key in error.instance if key not in known), "")
            return f"There is no argument {_quote(extra)!r}"
        if error.validator == "enum":
            return f"{_quote(error.instance)!r} is not a value of the argument {where!r}"
        if error.validator == "type":
            return f"The argument {where!r} has the wrong type"
        return f"The argument {where!r} is wrong: {_quote(error.message)}"


def _small_key(name: str, arguments: dict[str, Any]) -> tuple[Any, ...] | None:
    """What tells small flat calls apart, with types, for 1 equals True; None for other calls."""
    if len(arguments) > 8:
        return None
    key: list[Any] = [name]
    for argument, value in arguments.items():
        kind = type(value)
        if kind not in (str, int, bool) or (kind is str and len(value) > _QUOTED):
            return None
        key += (argument, kind, value)
    return tuple(key)


def _ordered(errors: Iterator[Any]) -> Iterator[Any]:
    """The error to name first: a call without the right keys is not judged by its values."""
    return iter(
        sorted(
            errors, key=lambda error: error.validator not in ("required", "additionalProperties")
        )
    )


def _unsafe(arguments: dict[str, Any]) -> str | None:
    """What consumers of JSON cannot take: too deep, not finite, or not encodable."""
    level: list[Any] = [arguments]
    for _depth in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value)
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, float) and not math.isfinite(value):
                return "A number in the arguments is not finite"
            elif isinstance(value, str) and not value.isascii() and _lone_surrogate(value):
                return "A string in the arguments holds half of a surrogate pair"
        if not below:
            return None
        level = below
    return f"The arguments are nested deeper than {MAX_DEPTH} levels"


def _lone_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
