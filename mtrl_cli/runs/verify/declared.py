"""What a run's ``config.yaml`` declares, as far as a verification needs it.

The file is read as plain YAML: a value that is an interpolation there is not known here, and the
rule that would need it is left out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mtrl_cli.runs.files import file_at
from mtrl_cli.runs.verify.report import Report

_NAME = "config.yaml"


@dataclass(frozen=True, slots=True)
class Declared:
    """None is a value that the file does not hold as plain text."""

    seed: int | None = None
    steps: int | None = None
    per_step: int | None = None
    size: int | None = None
    lag: int | None = None
    turn_tokens: int | None = None
    trajectory_tokens: int | None = None
    context: int | None = None
    max_turns: int | None = None
    max_refills: int | None = None
    floor: int | None = None
    on_failure: str | None = None
    on_truncated: str | None = None
    skips_truncated: bool | None = None
    """A group with a truncated member is left out."""
    saves_trajectories: bool | None = None
    promises: bool = True
    """The server accepts a training call before it is done; Twinkle answers with the result."""


def read_declared(folder: Path, report: Report) -> Declared:
    """What ``folder/config.yaml`` declares; a file that cannot be read is a finding."""
    try:
        content = yaml.safe_load(file_at(folder / _NAME).read_bytes())
    except OSError as error:
        report.found(_NAME, None, f"cannot be read: {error.strerror}")
        return Declared()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        report.found(_NAME, mark.line + 1 if mark else None, "is not YAML")
        return Declared()
    return Declared(
        seed=_number(content, "seed"),
        steps=_number(content, "train", "steps"),
        per_step=_number(content, "group", "per_step"),
        size=_number(content, "group", "size"),
        lag=_number(content, "train", "max_policy_lag"),
        turn_tokens=_number(content, "budget", "turn_tokens"),
        trajectory_tokens=_number(content, "budget", "trajectory_tokens"),
        context=_number(content, "server", "context"),
        max_turns=_number(content, "budget", "max_turns"),
        max_refills=_number(content, "group", "max_refills"),
        floor=_number(content, "group", "floor"),
        on_failure=_word(content, "group", "on_failure"),
        on_truncated=_word(content, "group", "on_truncated"),
        skips_truncated=_skips_truncated(content),
        saves_trajectories=_flag(content, "run", "trajectories"),
        promises=_word(content, "server", "kind") != "twinkle",
    )


def _skips_truncated(content: Any) -> bool | None:
    rules = _value(content, "train", "skip")
    if not isinstance(rules, list):
        return None
    return "model_truncated" in rules or _word(content, "group", "on_truncated") == "skip_group"


def _value(content: Any, *path: str) -> Any:
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _number(content: Any, *path: str) -> int | None:
    value = _value(content, *path)
    return value if type(value) is int else None


def _word(content: Any, *path: str) -> str | None:
    value = _value(content, *path)
    return value if isinstance(value, str) and not value.startswith("${") else None


def _flag(content: Any, *path: str) -> bool | None:
    value = _value(content, *path)
    return value if isinstance(value, bool) else None
