"""What the task's own code raises in an episode: a fault of that episode, told with its place.

The place is the innermost line of the task's own file; the traceback goes with the fault, for
whoever keeps it. What its methods return is checked where it comes in, so that a wrong value is
their fault, too, and not an error somewhere behind.
"""

import asyncio
import json
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.foreign import shown, text_of, told, written_at
from mtrl_cli.rollout.ports import (
    ContextOverflow,
    EnvironmentFault,
    Message,
    RolloutError,
    Task,
    TaskSample,
    ToolCall,
    ToolError,
)
from mtrl_cli.rollout.settle import is_being_cancelled

_MACHINERY = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "envs"))
"""Folders of the code that calls the task and its environments."""


class TaskFault(EnvironmentFault):
    """A method of the task or of its harness raised. ``trace`` is the traceback."""

    trace: str

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


class WrongValueError(Exception):
    """What a method returned is not what it is to return; see `own_code`."""


MEND_IT = "the traceback is in the run's log.txt; mend the code first, or it fails there again"
"""What to do about one's own code."""


class TaskBrokenError(MtrlError):
    """The task's own code failed where no episode stands for it. ``trace`` is the traceback."""

    hint = MEND_IT

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


class own_code:  # noqa: N801 - read like a function, and cheap: it stands at every call
    """Inside, a method of the task or its harness runs.

    A coroutine of the task's must be awaited inside, in the task (of asyncio) that runs it: a
    SystemExit that leaves a task ends the event loop.

    Raises:
        TaskFault: it raised. Failures that it attributes itself, and errors that are meant to
            end the run, go through if they have a text, and so do our own cancellation, the end of
            a coroutine that is closed, and a KeyboardInterrupt that may be the user's.
    """

    __slots__ = ("_operation", "_owner", "_runs_in")

    def __init__(self, owner: object, operation: str) -> None:
        self._owner = owner
        self._operation = operation

    def __enter__(self) -> None:
        self._runs_in = running()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if isinstance(error, asyncio.CancelledError):
            if is_being_cancelled():
                return
        elif isinstance(error, GeneratorExit):
            if running() is not self._runs_in:
                return  # nobody runs this any more: the coroutine is being closed
        elif isinstance(error, KeyboardInterrupt):
            if may_be_the_users():
                return
        elif isinstance(error, ToolError | ContextOverflow):
            pass  # an answer of others than the task
        elif isinstance(error, MtrlError | RolloutError) and text_of(error) is not None:
            return
        raise _fault(self._owner, self._operation, error) from error


def running() -> "asyncio.Task[Any] | None":
    """The task (of asyncio) that runs here."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop
        return None


def may_be_the_users() -> bool:
    """Whether a Ctrl-C raises KeyboardInterrupt here, as it does in a script; in a run it asks for
    the stop, and whoever raises one means that."""
    handler: Any = signal.getsignal(signal.SIGINT)
    owner = getattr(getattr(handler, "func", handler), "__self__", None)
    return handler is signal.default_int_handler or isinstance(owner, asyncio.Runner)


def task_sample(task: Task, seed: int) -> TaskSample:
    """The task's sample of a seed.

    Raises:
        TaskFault: its method raised, or returned none.
    """
    with own_code(task, "sample"):
        sample: Any = task.sample(seed)
        if not isinstance(sample, TaskSample):
            raise _wrong(sample, "a TaskSample")
        if not isinstance(sample.id, str):
            raise _wrong(sample, "a TaskSample whose id is a string")
        return sample


def sample_of_group(task: Task, seed: int, group: int) -> TaskSample:
    """`task_sample` for a group that is to be played.

    Raises:
        TaskBrokenError: there is none.
    """
    try:
        return task_sample(task, seed)
    except TaskFault as fault:
        raise TaskBrokenError(f"no task sample for group {group}: {fault}", fault.trace) from fault


def conversation(messages: Any) -> Sequence[Message]:
    """What a method returned as messages.

    Raises:
        WrongValueError: it is none.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise _wrong(messages, "a list of messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _wrong(message, 'a mapping with a "role"', f"as message {index} ")
    return messages


def plain(messages: Sequence[Message]) -> Sequence[Message]:
    """A copy of messages as they are recorded: their owner may go on writing in its own.

    Raises:
        WrongValueError, TypeError, ValueError: JSON cannot hold them.
    """
    if all(map(_is_flat_text, messages)):  # nearly all are; a tenth of the time
        return [dict(message) for message in messages]
    copied: list[Message] = json.loads(json.dumps(messages, default=_as_dict))
    return copied


def _is_flat_text(message: Message) -> bool:
    return type(message) is dict and all(
        type(key) is str and type(value) is str for key, value in message.items()
    )


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise _wrong(value, "text or a number", "in its messages ")


def tool_calls(calls: Any) -> Sequence[ToolCall]:
    """What a harness returned as a turn's calls; None is none.

    Raises:
        WrongValueError: it is none.
    """
    if calls is None:
        return ()
    if not isinstance(calls, list | tuple):
        raise _wrong(calls, "a list of ToolCall")
    for call in calls:
        if not isinstance(call, ToolCall):
            raise _wrong(call, "a ToolCall", "as a call ")
        if not isinstance(call.name, str) or not isinstance(call.arguments, Mapping):
            raise _wrong(call, "a ToolCall with a name and a mapping of arguments", "as a call ")
        if not isinstance(call.error, str | None):
            raise _wrong(call, "a ToolCall whose error is a string or None", "as a call ")
    return calls


def fields(value: Any) -> Mapping[str, Any]:
    """What a method returned as the fields of an action, or as keyword arguments.

    Raises:
        WrongValueError: it is none.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong(value, "a mapping of names")
    return value


def text(answer: Any) -> str:
    """What a method returned as text.

    Raises:
        WrongValueError: it is none.
    """
    if not isinstance(answer, str):
        raise _wrong(answer, "a string")
    return answer


def _wrong(value: object, wanted: str, where: str = "") -> WrongValueError:
    return WrongValueError(f"{shown(value)} {where}where {wanted} is needed")


def _fault(owner: object, operation: str, error: BaseException) -> TaskFault:
    trace = traceback_of(error)
    if isinstance(error, WrongValueError):
        where = written_at(getattr(owner, operation, None))
        return TaskFault(f"{type(owner).__name__}.{operation} returned {error}{where}", trace)
    what = f"{told(error)}{place(type(owner), error)}"
    fault = TaskFault(f"{type(owner).__name__}.{operation} raised {what}", trace)
    fault.interrupts = isinstance(error, KeyboardInterrupt)
    return fault


def traceback_of(error: BaseException) -> str:
    """For the log."""
    return "".join(traceback.format_exception(error))


def place(owner: type, error: BaseException) -> str:
    """`` (FILE:LINE)`` of the innermost line in the owner's own file, else outside of the code
    that calls it; empty where there is none."""
    own = getattr(sys.modules.get(owner.__module__), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    named = [frame for frame in frames if frame.filename == own] or [
        frame for frame in frames if not frame.filename.startswith(_MACHINERY)
    ]
    return f" ({named[-1].filename}:{named[-1].lineno})" if named else ""
