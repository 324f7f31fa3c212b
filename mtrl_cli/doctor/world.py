"""The environment: made, begun twice with one seed, stepped once, given back.

The step is the task's own: the harness reads the calls of nothing here, so a call is made up from
the first tool's schema, with the least values that it allows. An environment that refuses such a
call (`ToolError`) has answered, and that is enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.doctor.report import Speaker
from mtrl_cli.rollout.held import borrow_environment
from mtrl_cli.rollout.ports import EnvironmentFactory, Message, Task, ToolCall, ToolError, ToolSpec
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.task_fault import conversation, own_code, task_sample

SEED = 20_240_229
"""Of the two episodes; any will do."""
_SHOWN = 60


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
    if stepped is None:
        speaker.warn("it was not stepped: the task has no tool", "see docs/custom-task.md")
    else:
        speaker.ok(stepped)
    with own_code(task, "messages"):
        return conversation(task.messages(sample, seen[1]))


async def _stepped(environment: Any, task: Task) -> str | None:
    if not task.tools:
        return None
    call = made_up(task.tools[0])
    try:
        outcome = await environment.step(call)
    except ToolError as refused:
        return f"stepped with {call.name}, which it refused in words: {_short(str(refused))}"
    ended = ", which ended the episode" if outcome.done else ""
    return f"stepped with {call.name}: reward {outcome.reward:g}{ended}"


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


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= _SHOWN else flat[: _SHOWN - 1] + "…")
