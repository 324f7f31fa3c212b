"""The records office for a sandbox: plain data in and out."""

from __future__ import annotations

from typing import Any

from mtrl_cli.tasks.records.game import Desk


class RecordsProgram:
    """The same office as `mtrl_cli.tasks.records.env`, with the same words."""

    def __init__(self) -> None:
        self._desk = Desk()

    def reset(self, seed: int) -> dict[str, Any]:
        return {"text": self._desk.open(seed)}

    def step(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        text, reward, done = self._desk.act(tool, arguments)
        return {"observation": {"text": text}, "reward": reward, "done": done}
