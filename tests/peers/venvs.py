"""Where the peers are that need an environment of their own; how each is installed stands in the
docstring of its test."""

import os
from pathlib import Path


def interpreter(name: str) -> Path:
    """The Python of the environment ``name``: ``MTRL_NAME_PYTHON``, or in ``~/.venvs/NAME``."""
    told = os.environ.get(f"MTRL_{name.upper()}_PYTHON")
    return Path(told) if told else Path.home() / ".venvs" / name / "bin" / "python"
