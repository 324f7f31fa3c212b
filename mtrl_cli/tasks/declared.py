"""A task that is declared in YAML alone: prompt, tools, actions and observations of an environment
that exists.

::

    task:
      name: tic_tac_toe
      entrypoint: mtrl_cli.tasks.declared:DeclaredTask
      params:
        system: You play tic-tac-toe as x. Call place once a turn.
        observation: "Board: {board}. Free: {legal_actions}."
        tools:
          - name: place
            description: Put a mark on a cell.
            properties: {cell: {type: integer, minimum: 0, maximum: 8}}
        actions:
          place: {action_id: "{cell}"}

**Tools.** A list of names, descriptions and JSON schema ``properties`` (all required, but for
those in ``optional``), or ``mcp``: the tools are those that the environment lists, and their calls
and results need no declaration.

**Actions.** For each tool, the fields of the environment's action. A text that is nothing but
``{argument}`` is that argument's value, with its type; in other text arguments are filled in;
``{from: argument, values: {…}}`` looks the argument's value up; anything else is taken as it is. A
tool without an entry sends its arguments as the fields.

**Observation.** A text with the observation's fields filled in, ``{board}`` or ``{player.cards}``;
without one, the fields as JSON. ``features`` computes further fields of vectors of numbers:
``{of: info_state, between: [3, 33], count: true, add: -1}`` is how many entries of the slice are
not 0 (plus ``add``), ``{of: info_state, between: [85, 137], names: [A, 2, …]}`` the names of those
entries, the list of names repeated as often as it takes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import (
    EnvironmentFault,
    Message,
    TaskSample,
    ToolCall,
    ToolError,
    ToolSpec,
)
from mtrl_cli.tasks import mcp

_PLACE = re.compile(r"\{([A-Za-z_][\w.]*)\}")


class DeclaredTask:
    """`mtrl_cli.rollout.ports.Task`, and the adapter to the environment.

    Args:
        system: the system prompt; None leaves it out.
        prompt: the user's message, with ``{observation}`` in it.
        tools: see the module, as are ``actions``, ``observation`` and ``features``.
        reset: further arguments of the environment's reset.
        members_differ: hand the group member's index to reset, as ``member``.
        references: mean rewards of known policies.

    Raises:
        UsageError: a declaration that cannot mean anything.
    """

    def __init__(
        self,
        name: str,
        unfinished_reward: float,
        tools: Sequence[Mapping[str, Any]] | str,
        system: str | None = None,
        prompt: str = "{observation}",
        actions: Mapping[str, Mapping[str, Any]] | None = None,
        observation: str | None = None,
        features: Mapping[str, Mapping[str, Any]] | None = None,
        reset: Mapping[str, Any] | None = None,
        members_differ: bool = False,
        references: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.unfinished_reward = unfinished_reward
        self.references = dict(references or {})
        self.tools_offered = tools == "mcp"
        self.tools: Sequence[ToolSpec] = ()
        if not self.tools_offered:
            if isinstance(tools, str) or not tools:
                raise _wrong("tools", "a list of tools, or mcp")
            self.tools = tuple(_tool(tool) for tool in tools)
        self._actions = {tool: dict(fields) for tool, fields in (actions or {}).items()}
        names = {tool["function"]["name"] for tool in self.tools}
        if stray := sorted(set(self._actions) - names):
            raise _wrong("actions", f"tools that exist, which {', '.join(stray)} does not")
        self._system, self._prompt = system, prompt
        self._observation = observation
        self._features = {
            key: Feature.declared(key, given) for key, given in (features or {}).items()
        }
        self._reset, self._members_differ = dict(reset or {}), members_differ
        self._read = False
        """An observation has had the fields that are declared."""

    def sample(self, seed: int) -> TaskSample:
        return TaskSample(id=f"{self.name}/{seed}", seed=seed)

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        user = {"role": "user", "content": self._prompt.replace("{observation}", observation)}
        return [{"role": "system", "content": self._system}, user] if self._system else [user]

    def take_tools(self, listing: Mapping[str, Any]) -> None:
        self.tools = mcp.tool_specs(listing)

    # --- the environment's side ---------------------------------------------------------------

    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        members = {"member": member} if self._members_differ else {}
        return {"seed": sample.seed, **members, **self._reset}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        if self.tools_offered:
            return mcp.action(call)
        fields = self._actions.get(call.name)
        if fields is None:
            return dict(call.arguments)
        return {key: _filled(value, call.arguments) for key, value in fields.items()}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        answered = mcp.text(observation) if self.tools_offered else None
        if answered is not None:
            return answered
        try:
            computed = {key: feature.value(observation) for key, feature in self._features.items()}
            fields = {**observation, **computed}
            if self._observation is None:
                return json.dumps(fields, ensure_ascii=False, default=str)
            told = _PLACE.sub(lambda place: _shown(_at(fields, place[1])), self._observation)
        except _NoFieldError as error:
            if self._read:  # the declaration has fitted others: this one is odd
                raise EnvironmentFault(f"an observation lacks a field: {error}") from error
            param = "features" if self._lacks_in_features(observation) else "observation"
            raise UsageError(f"task.params.{param}: {error}") from error
        self._read = True
        return told

    def _lacks_in_features(self, observation: Mapping[str, Any]) -> bool:
        try:
            for feature in self._features.values():
                feature.value(observation)
        except _NoFieldError:
            return True
        return False


@dataclass(frozen=True)
class Feature:
    """A field computed of a vector: how many entries of a slice are set, or their names."""

    of: str
    between: tuple[int, int]
    names: tuple[str, ...]
    """Empty where the entries are counted."""
    add: int

    @classmethod
    def declared(cls, key: str, given: Mapping[str, Any]) -> "Feature":
        """Raises: UsageError."""
        between: Sequence[int] = given.get("between") or ()
        names = tuple(map(str, given.get("names") or ()))
        known = set(given) <= {"of", "between", "names", "count", "add"}
        in_order = len(between) == 2 and 0 <= between[0] < between[1]
        if not (known and in_order and given.get("of") and bool(names) != bool(given.get("count"))):
            raise _wrong(
                f"features.{key}", "{of: FIELD, between: [FIRST, END]} with names or count: true"
            )
        first, end = int(between[0]), int(between[1])
        return cls(str(given["of"]), (first, end), names, int(given.get("add", 0)))

    def value(self, observation: Mapping[str, Any]) -> str:
        vector = _at(observation, self.of)
        first, end = self.between
        if len(vector) < end:
            raise ValueError(f"{self.of} has {len(vector)} entries; a feature wants {end}")
        set_ = [index for index, value in enumerate(vector[first:end]) if value]
        if not self.names:
            return str(len(set_) + self.add)
        return " ".join(self.names[index % len(self.names)] for index in set_)


def _tool(given: Mapping[str, Any]) -> ToolSpec:
    """Raises: UsageError."""
    known = {"name", "description", "properties", "optional"}
    properties = given.get("properties") or {}
    optional = set(given.get("optional") or ())
    if not given.get("name") or set(given) - known or optional - set(properties):
        raise _wrong("tools", "name, description, properties, and optional ones of those, each")
    return {
        "type": "function",
        "function": {
            "name": str(given["name"]),
            "description": str(given.get("description", "")),
            "parameters": {
                "type": "object",
                "properties": {key: dict(schema) for key, schema in properties.items()},
                "required": [key for key in properties if key not in optional],
                "additionalProperties": False,
            },
        },
    }


def _filled(value: Any, arguments: Mapping[str, Any]) -> Any:
    """A field of an action, with the call's arguments in it.

    Raises:
        ToolError: an argument has no meaning here.
    """
    if isinstance(value, Mapping) and set(value) == {"from", "values"}:
        given = arguments.get(value["from"])
        for key, meaning in value["values"].items():
            if str(key) == str(given):
                return meaning
        allowed = ", ".join(str(key) for key in value["values"])
        raise ToolError(f"The argument {value['from']!r} is none of {allowed}")
    if not isinstance(value, str):
        return value
    if whole := _PLACE.fullmatch(value):
        return arguments.get(whole[1])
    return _PLACE.sub(lambda place: _shown(arguments.get(place[1])), value)


def _at(fields: Any, path: str) -> Any:
    """Raises: _NoFieldError: there is no such field."""
    inside = ""
    for part in path.split("."):
        try:
            if isinstance(fields, Sequence) and not isinstance(fields, str):
                fields = fields[int(part)]
            else:
                fields = fields[part]
        except (LookupError, ValueError, TypeError) as error:
            where = f"{inside[:-1]!r}" if inside else "the observation"
            raise _NoFieldError(f"there is no field {path!r}: {where} {_holds(fields)}") from error
        inside += f"{part}."
    return fields


def _holds(value: Any) -> str:
    """What there is instead."""
    if isinstance(value, Mapping):
        names = [str(name) for name in value]
        more = ", …" if len(names) > _NAMED else ""
        return f"has {', '.join(names[:_NAMED]) or 'none'}{more}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"has {len(value)} entries, from 0"
    return "is a plain value"


_NAMED = 20


class _NoFieldError(Exception):
    """An observation does not have a field; the text says what it has."""


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _wrong(param: str, wanted: str) -> UsageError:
    return UsageError(f"task.params.{param}: write {wanted}; see docs/environments.md")
