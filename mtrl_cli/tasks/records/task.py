"""The records task: several tools, several calls a turn, and a harness that keeps a scratchpad."""

from collections.abc import Mapping, Sequence
from typing import Any

from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    AssistantTurn,
    Harness,
    Message,
    TaskSample,
    ToolCall,
    ToolError,
    ToolSpec,
)
from mtrl_cli.tasks.records.game import TABLES

SYSTEM_PROMPT = (
    "You keep an office's records. An invoice's amount is its order's quantity times the price of"
    " the order's item. Look rows up with find (value * shows all), write what you will need with"
    " note, change one amount with correct, end with submit. Several calls a turn are fine."
)

_NOTES_KEPT = 6


def _tool(name: str, description: str, **properties: Mapping[str, Any]) -> ToolSpec:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS: tuple[ToolSpec, ...] = (
    _tool(
        "find",
        "Rows of a table whose column has a value.",
        table={"type": "string", "enum": list(TABLES)},
        column={"type": "string"},
        value={"type": "string"},
    ),
    _tool("note", "Keep a line in mind.", text={"type": "string"}),
    _tool(
        "correct",
        "Write an invoice's amount.",
        invoice={"type": "string"},
        amount={"type": "integer"},
    ),
    _tool("submit", "End the work."),
)


class Records:
    """`mtrl_cli.rollout.ports.Task` and `HarnessFactory`, and the adapter to the environment."""

    references: Mapping[str, float] = {"submit at once": 0.0, "all right": 1.0}

    def __init__(self, name: str = "records", unfinished_reward: float = -1.0) -> None:
        self.name = name
        self.unfinished_reward = unfinished_reward
        self.tools: Sequence[ToolSpec] = TOOLS

    def sample(self, seed: int) -> TaskSample:
        return TaskSample(id=f"{self.name}/{seed}", seed=seed)

    def messages(self, sample: TaskSample, observation: str) -> Sequence[Message]:
        return (
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": observation},
        )

    def lender(self, metadata: Mapping[str, Any]) -> Lender[Harness]:
        async def make(key: str) -> Harness:
            return Scratchpad(self)

        return Lender("harness", make, lambda harness: harness.close())

    # --- the environment's side ---------------------------------------------------------------

    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        """The members of a group search the same office."""
        return {"seed": sample.seed}

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        """Raises: ToolError: the table has no such column."""
        arguments = dict(call.arguments)
        if call.name == "find" and arguments["column"] not in TABLES[arguments["table"]]:
            columns = ", ".join(TABLES[arguments["table"]])
            raise ToolError(f"The columns of {arguments['table']} are {columns}.")
        return {"tool": call.name, "arguments": arguments}

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        return str(observation["text"])


class Scratchpad:
    """`mtrl_cli.rollout.ports.Harness`: numbers the answers, and repeats the model's notes.

    A note passes through the environment like every call, so that a turn's calls keep their
    order; what it says is kept here, and stands under every later answer that is not a note's.
    """

    def __init__(self, task: Records) -> None:
        self._task = task
        self._answers = 0
        self._notes: list[str] = []

    async def open(self, sample: TaskSample, member: int, observation: str) -> Sequence[Message]:
        return self._task.messages(sample, observation)

    async def calls(self, turn: AssistantTurn) -> Sequence[ToolCall]:
        return turn.calls

    async def answer(self, call: ToolCall, text: str) -> str:
        self._answers += 1
        numbered = f"{self._answers}. {text}"
        if call.name == "note" and call.error is None:
            self._notes.append(str(call.arguments["text"]))
            del self._notes[:-_NOTES_KEPT]
            return numbered
        return f"{numbered}\nNotes: {'; '.join(self._notes)}" if self._notes else numbered

    async def close(self) -> None:
        """It holds nothing but its memory."""
