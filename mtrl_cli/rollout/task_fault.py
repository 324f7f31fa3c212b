"""What the task's own code raises in an episode: a fault of that episode, told with its place.

The place is the innermost line of the task's own file; the traceback goes with the fault, for
whoever keeps it.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import EnvironmentFault, RolloutError

_LONGEST = 300
"""Characters of an error's first line that are told."""


class TaskFault(EnvironmentFault):
    """A method of the task or of its harness raised. ``trace`` is the traceback."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


@contextmanager
def own_code(owner: object, operation: str) -> Iterator[None]:
    """Inside, a method of the task or its harness runs.

    Raises:
        TaskFault: it raised. Failures that it attributes itself, and errors that are meant to
            end the run, go through.
    """
    try:
        yield
    except (RolloutError, MtrlError):
        raise
    except (Exception, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        place = _place(owner, error)
        text = f"{type(owner).__name__}.{operation} raised {_told(error)}{place}"
        raise TaskFault(text, trace) from error


def _told(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # somebody else's code, too
        lines = []
    return f"{type(error).__name__}: {lines[0][:_LONGEST] if lines else '(no message)'}"


def _place(owner: object, error: BaseException) -> str:
    module = sys.modules.get(type(owner).__module__)
    own = getattr(module, "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    named = [frame for frame in frames if frame.filename == own] or frames[1:]
    return f" ({named[-1].filename}:{named[-1].lineno})" if named else ""
