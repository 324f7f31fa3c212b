"""The words of OpenEnv's MCP environments: tools as they list them, calls, results.

Their actions are ``{"type": "call_tool", "tool_name": …, "arguments": {…}}``; their observations
hold a ``result``, which is text, data, or FastMCP's object with ``data`` in it, and an ``error``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import ToolCall, ToolSpec


def tool_specs(listing: Mapping[str, Any]) -> Sequence[ToolSpec]:
    """The tools of an observation that lists them.

    Raises:
        UsageError: it lists none.
    """
    tools = listing.get("tools") or ()
    if not tools:
        raise UsageError("task.params.tools is 'mcp', but the environment lists no tools")
    return tuple(_spec(tool) for tool in tools)


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    schema = dict(tool.get("input_schema") or tool.get("inputSchema") or {})
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    description = str(tool.get("description") or "").strip()
    return {
        "type": "function",
        "function": {"name": tool["name"], "description": description, "parameters": schema},
    }


def action(call: ToolCall) -> Mapping[str, Any]:
    return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}


def text(observation: Mapping[str, Any]) -> str | None:
    """What a tool answered; None when the observation is no tool's."""
    if "tool_name" not in observation:
        return None
    error = observation.get("error")
    if error:
        message = error.get("message") if isinstance(error, Mapping) else error
        return f"Error: {message}"
    result = observation.get("result")
    if isinstance(result, Mapping) and "data" in result:
        result = result["data"]
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
