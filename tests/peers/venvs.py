"""Where the peers are that need an environment of their own; how each is installed stands in the
docstring of its test. And how a server of theirs is ended."""

import os
import signal
import subprocess
from pathlib import Path


def interpreter(name: str) -> Path:
    """The Python of the environment ``name``: ``MTRL_NAME_PYTHON``, or in ``~/.venvs/NAME``."""
    told = os.environ.get(f"MTRL_{name.upper()}_PYTHON")
    return Path(told) if told else Path.home() / ".venvs" / name / "bin" / "python"


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """End a peer's server, started in a session of its own, with all that it has started."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
