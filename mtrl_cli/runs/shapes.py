"""What a reader of a run's files relies on: the shape of what mtrl wrote there.

A file that was damaged, or that something else wrote, is told by one line that names what in it is
not as it was written, and nothing behind it has to expect any other value. Keys that are not read
may hold anything.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.files import DamagedFile, read_records
from mtrl_cli.runs.trajectories import read_trajectories

Holds = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Is:
    """A plain value: what it is, in words, and how that is seen."""

    words: str
    holds: Holds


@dataclass(frozen=True, slots=True)
class Each:
    """A list, or the values of an object, that all have one shape."""

    kind: type
    shape: "Shape"


@dataclass(frozen=True, slots=True)
class Fields:
    """An object; ``needed`` are there, and ``may`` be there or null."""

    needed: Mapping[str, "Shape"]
    may: Mapping[str, "Shape"]


Shape = Is | Each | Fields

_LARGEST = 1e15
"""Times and counts behind this overflow whatever shows them."""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _LARGEST


NUMBER = Is("a number", _is_number)
WHOLE = Is("a whole number", lambda value: type(value) is int and abs(value) < _LARGEST)
GAMES = Is("a number of games", lambda value: type(value) is int and 0 < value < _LARGEST)
TEXT = Is("a text", lambda value: isinstance(value, str))
OBJECT = Is("an object", lambda value: isinstance(value, dict))
MAYBE_NUMBER = Is("a number or null", lambda value: value is None or _is_number(value))
MAYBE_TEXT = Is("a text or null", lambda value: value is None or isinstance(value, str))
INTERVAL = Is(
    "two numbers",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)),
)
_FIGURE = Is(
    "a number or null",
    lambda value: value is None or (type(value) in (int, float) and math.isfinite(value)),
)
ANYTHING = Is("anything", lambda value: True)
_TOKENS = Is(
    "a list of token ids",
    lambda value: isinstance(value, list) and all(type(one) is int for one in value),
)
_LOGPROBS = Is(
    "a list of numbers", lambda value: isinstance(value, list) and all(map(_is_number, value))
)
_SPAN = Is(
    "a kind and two places",
    lambda value: (
        isinstance(value, list) and list(map(type, value)) == [str, int, int] and value[1] >= 0
    ),
)

_VERSUS = Fields(
    {"mean": NUMBER} | dict.fromkeys(("pairs", "wins", "ties", "losses"), WHOLE),
    {"left_out": WHOLE, "se": NUMBER, "interval": INTERVAL, "label": TEXT, "against": TEXT},
)
_EVALUATION = Fields(
    {"mean": NUMBER, "games": GAMES},
    dict.fromkeys(("passed", "unfinished", "failed"), WHOLE)
    | dict.fromkeys(("se", "invalid_call_share", "temperature"), NUMBER)
    | dict.fromkeys(("label", "policy"), TEXT)
    | {"interval": INTERVAL, "pass_interval": INTERVAL}
    | {"stops": Each(dict, WHOLE), "versus": _VERSUS},
)
STATE = Fields(
    {},
    dict.fromkeys(("created", "ended", "given_up"), NUMBER)
    | dict.fromkeys(("attempt", "step", "steps", "pid"), WHOLE)
    | dict.fromkeys(("experiment", "kind", "reason", "policy"), TEXT)
    | {
        "references": Each(dict, NUMBER),
        "evaluation": Each(dict, _EVALUATION),
        "resumed": Each(list, Fields({"attempt": WHOLE, "step": WHOLE, "time": NUMBER}, {})),
        "borrows": Fields({}, {"held": WHOLE, "quarantined": Each(list, TEXT)}),
        "server": OBJECT,
        "notices": Each(list, OBJECT),
        "plays": Each(list, TEXT),
    },
)
GROUP = Fields(
    {"group": WHOLE, "state": TEXT},
    {"policy": TEXT, "policy_step": WHOLE, "task": TEXT},
)
ROLLBACK = Fields({"attempt": WHOLE, "to": WHOLE}, {})
METRICS = Each(dict, _FIGURE)
TRAJECTORY = Fields(
    dict.fromkeys(("group", "member", "refill", "policy_step"), WHOLE)
    | {
        "task": Fields({"id": TEXT}, {}),
        "stop": TEXT,
        "reward": MAYBE_NUMBER,
        "failure": MAYBE_TEXT,
        "tokens": _TOKENS,
        "spans": Each(list, _SPAN),
        "logprobs": _LOGPROBS,
        "turns": Each(
            list,
            Fields(
                {
                    "text": TEXT,
                    "tokens": WHOLE,
                    "calls": Each(
                        list,
                        Fields(
                            {"name": TEXT, "answer": TEXT, "reward": NUMBER},
                            {"arguments": TEXT},
                        ),
                    ),
                },
                {},
            ),
        ),
    },
    {"reference": _LOGPROBS},
)


def wrong(value: Any, shape: Shape, at: str = "it") -> str | None:
    """What in ``value`` is not of ``shape``, in words; None where all is."""
    if isinstance(shape, Is):
        return None if shape.holds(value) else f"{at} is not {shape.words}"
    if isinstance(shape, Each):
        if not isinstance(value, shape.kind):
            return f"{at} is not {'a list' if shape.kind is list else 'an object'}"
        inside: Any = value
        each: Any = inside.items() if shape.kind is dict else enumerate(inside)
        found = (wrong(one, shape.shape, _path(at, key)) for key, one in each)
        return next(filter(None, found), None)
    if not isinstance(value, dict):
        return f"{at} is not an object"
    for key, one in shape.needed.items():
        if key not in value:
            return f"{_path(at, key)} is missing"
        if told := wrong(value[key], one, _path(at, key)):
            return told
    given = ((key, one) for key, one in shape.may.items() if value.get(key) is not None)
    return next(filter(None, (wrong(value[k], one, _path(at, k)) for k, one in given)), None)


def _path(at: str, key: object) -> str:
    return str(key) if at == "it" else f"{at}.{key}"


def read_figures(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of ``metrics.jsonl``, without what is null.

    Raises:
        DamagedFile: one is not what a run writes.
    """
    for line in _checked(read_records(path), path, METRICS):
        yield {name: value for name, value in line.items() if value is not None}


def read_groups(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of ``groups.jsonl``.

    Raises:
        DamagedFile: one is not what a run writes.
    """
    return _checked(read_records(path), path, GROUP)


def read_rollbacks(path: Path) -> Iterator[dict[str, Any]]:
    """The rollbacks in ``commits.jsonl``.

    Raises:
        DamagedFile: one is not what a run writes.
    """
    back = (line for line in read_records(path) if line.get("kind") == "rollback")
    return _checked(back, path, ROLLBACK)


def read_episodes(path: Path) -> Iterator[dict[str, Any]]:
    """The trajectories of a file, each with one logprob for each of its sampled tokens.

    Raises:
        DamagedFile: one is not what a run writes.
    """
    for line in _checked(read_trajectories(path), path, TRAJECTORY):
        sampled = sum(end - start for kind, start, end in line["spans"] if kind == "sampled")
        if sampled != len(line["logprobs"]) or any(
            not start <= end <= len(line["tokens"]) for _, start, end in line["spans"]
        ):
            raise DamagedFile(path, "tokens, spans and logprobs do not fit each other")
        yield line


def _checked(lines: Iterator[dict[str, Any]], path: Path, shape: Shape) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if told := wrong(line, shape):
            raise DamagedFile(path, f"in record {number} {told}")
        yield line


def check_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raises: MtrlError: what ``run.json`` in ``path`` holds is not what a run writes."""
    if told := wrong(dict(state), STATE):
        raise damaged_state(path, told)


def damaged_state(path: Path, told: str) -> MtrlError:
    """``run.json`` in ``path`` is damaged: ``told`` is what `wrong` says of it."""
    return MtrlError(f"{path / 'run.json'} is damaged: {told}")
