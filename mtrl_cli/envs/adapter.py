"""What a backend asks of a task: how a call becomes an action, an observation text.

A backend knows how to start, drive and stop instances; it knows nothing of the game. These
three methods stand on the task class, beside what `mtrl_cli.rollout.ports.Task` wants. They
deal in plain data only, so that the same task runs in process, in a sandbox or behind a URL.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from mtrl_cli.rollout.ports import TaskSample, ToolCall


class TaskAdapter(Protocol):
    """Between the rollout core's words and an environment's data."""

    def reset_arguments(self, sample: TaskSample, member: int) -> Mapping[str, Any]:
        """The keyword arguments of the environment's ``reset``."""
        ...

    def action(self, call: ToolCall) -> Mapping[str, Any]:
        """The fields of the environment's action.

        Raises:
            ToolError: the call makes no sense; its text is the answer to the model.
        """
        ...

    def observation_text(self, observation: Mapping[str, Any]) -> str:
        """What the model reads of an observation: its fields without done, reward, metadata."""
        ...
