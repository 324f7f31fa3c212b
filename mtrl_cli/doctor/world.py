"""The environment: made, begun twice with one seed, stepped once, given back.

The step is the task's own: the harness reads the calls of nothing here, so a call is made up from
the first tool's schema, with the least values that it allows. Where the environment refuses such a
call (`ToolError`), schema and environment may differ, or a rule of the game speaks against it: that
cannot be told apart here, so it is a warning that shows both. A value that the schema leaves free
and the doctor had to invent may well be refused: that is none.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtrl_cli.doctor.report import Speaker
from mtrl_cli.rollout.held import borrow_environment
from mtrl_cli.rollout.ports import EnvironmentFactory, Message, Task, ToolCall, ToolError, ToolSpec
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.task_fault import conversation, own_code, task_sample

SEED = 20_240_229
"""Of the two episodes; any will do."""
_SHOWN = 60
_REFUSAL = 200
"""Characters of what is shown of an observation or a call, and of a refusal."""
_DIFFER = (
    "if a rule of the game forbids this call, all is well; else let the tool's schema, the task's"
    " action() and the environment agree"
)


async def played(
    speaker: Speaker, envs: EnvironmentFactory, task: Task, resources: RolloutResources
) -> Sequence[Message]:
    """Begin two episodes of one seed, each in an instance of its own, and step the last one.

    Returns:
        The opening of the conversation that a model would read.

    Raises:
        RolloutError: an operation failed.
    """
    sample, seen = task_sample(task, SEED), []
    for last in (False, True):
        async with resources.scope("doctor") as scope:
            environment = await borrow_environment(scope, envs)
            seen.append(await environment.reset(sample, 0))
            if last:
                stepped = await _stepped(environment, task)
    speaker.ok(f"created, begun and given back twice; it says: {_short(seen[0])}")
    if seen[0] != seen[1]:
        speaker.warn(
            "it ignores its seed: two episodes of one seed began differently, so the members of"
            " a group do not share a start",
            "let its reset take seed=, or compare means over many groups only",
        )
    else:
        speaker.ok("it honours its seed: two episodes of one seed began alike")
    stepped(speaker)
    with own_code(task, "messages"):
        return conversation(task.messages(sample, seen[1]))


async def _stepped(environment: Any, task: Task) -> Callable[[Speaker], None]:
    """What to tell of one step."""
    if not task.tools:
        missing = "it was not stepped: the task has no tool"
        return lambda speaker: speaker.warn(missing, "see docs/custom-task.md")
    call = made_up(task.tools[0])
    try:
        outcome = await environment.step(call)
    except ToolError as refused:
        sent = json.dumps(call.arguments, ensure_ascii=False, default=str)
        told = f"stepped with {call.name} {_short(sent)}"
        answer = f"which it refused: {_short(str(refused), _REFUSAL)}"
        schema = task.tools[0]["function"].get("parameters") or {}
        if _invented({**schema, "type": "object"}):
            return lambda speaker: speaker.ok(f"{told}, in part invented, {answer}")
        return lambda speaker: speaker.warn(f"{told}, as its schema has it, {answer}", _DIFFER)
    ended = ", which ended the episode" if outcome.done else ""
    fine = f"stepped with {call.name}: reward {outcome.reward:g}{ended}"
    return lambda speaker: speaker.ok(fine)


def made_up(tool: ToolSpec) -> ToolCall:
    """A call of a tool, with an argument for each that is required."""
    function = tool["function"]
    schema = function.get("parameters") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    wanted = schema.get("required", list(properties))
    arguments = {name: _value(properties.get(name) or {}) for name in wanted}
    return ToolCall(str(function["name"]), arguments)


def _value(schema: Mapping[str, Any]) -> Any:
    """A value that a simple schema allows; of one that is not simple, a text."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if choices := schema.get("enum"):
        return choices[-1]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    if kind == "boolean":
        return False
    if kind == "array":
        items = schema.get("items") or {}
        return [_value(items) for _ in range(int(schema.get("minItems", 0)))]
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: _value(properties.get(name) or {}) for name in schema.get("required", ())}
    return "x"


def _invented(schema: Mapping[str, Any]) -> bool:
    """Whether `_value` invents a part: where the schema allows nearly anything."""
    if any(key in schema for key in ("const", "default", "enum")):
        return False
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return "minimum" not in schema
    if kind == "array":
        return bool(schema.get("minItems")) and _invented(schema.get("items") or {})
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = schema.get("required", properties)
        return any(_invented(properties.get(name) or {}) for name in wanted)
    return kind != "boolean"


def _short(text: str, most: int = _SHOWN) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= most else flat[: most - 1] + "…")
