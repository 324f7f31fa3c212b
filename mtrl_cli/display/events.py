"""Events for scripts: one JSON object a line on standard output, texts on standard error.

    {"event": "step_finished", "time": 1764448695.2, "step": 12, "steps": 150, …}

``event`` is the event's class name in snake case, and its other keys are the fields of that class
(`mtrl_cli.rollout.events`, `mtrl_cli.training.events`); docs/scripts.md lists them. Every number
is finite: what is not becomes null. Single turns are left out, and so are the games of an
evaluation, which are told as ``evaluation_progress`` every few seconds.
"""

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtrl_cli.display.lines import Redact
from mtrl_cli.display.plain import PlainPresenter
from mtrl_cli.display.state import RunState
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.views import Stopping
from mtrl_cli.rollout.events import GroupFinished, GroupStarted, MemberFinished, TurnSampled
from mtrl_cli.training.events import EVALUATION

PROGRESS_EVERY = 5.0
"""Seconds between two events about an evaluation in progress."""

_OF_A_GROUP = (GroupStarted, MemberFinished, GroupFinished)
_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Failed:
    """The command failed; ``exit_code`` is what it ends with."""

    error: str
    exit_code: int


class EventPresenter:
    """Prints every event of a run, while ``texts`` says the same to a person."""

    def __init__(
        self,
        texts: PlainPresenter,
        screen: Screen,
        *,
        redact: Redact,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._texts = texts
        self._screen = screen
        self._redact = redact
        self._clock = clock
        self._wall = wall
        self._told_games = 0
        self._told_at = clock()

    @property
    def state(self) -> RunState:
        return self._texts.state

    def observe(self, event: object) -> None:
        self._texts.observe(event)
        if isinstance(event, TurnSampled):
            return
        if isinstance(event, _OF_A_GROUP) and event.stream == EVALUATION:
            return
        self.emit(event_name(type(event)), _facts(event))

    def tick(self) -> None:
        self._texts.tick()
        evaluation, now = self.state.evaluation, self._clock()
        if evaluation is None or now - self._told_at < PROGRESS_EVERY:
            return
        if evaluation.done != self._told_games:
            self._told_games, self._told_at = evaluation.done, now
            facts = {"label": evaluation.label, "done": evaluation.done, "games": evaluation.games}
            self.emit("evaluation_progress", {**facts, "mean": evaluation.mean})

    def stopping(self, stopping: Stopping) -> None:
        self._texts.stopping(stopping)
        self.emit("stopping", {"stage": stopping.stage, "cause": stopping.cause})

    def close(self) -> None:
        self._texts.close()

    def emit(self, name: str, facts: Mapping[str, Any]) -> None:
        """Print one event."""
        self._screen.line(event_line(name, facts, self._wall(), self._redact))


def _facts(event: Any) -> Mapping[str, Any]:
    """Its fields: the core's events are named tuples, those of training dataclasses."""
    named = hasattr(event, "_asdict")
    facts: Mapping[str, Any] = event._asdict() if named else dataclasses.asdict(event)
    return facts


def event_name(kind: type) -> str:
    """``StepFinished`` → ``step_finished``."""
    return _HUMP.sub("_", kind.__name__).lower()


def event_line(name: str, facts: Mapping[str, Any], now: float, redact: Redact) -> str:
    """One event as a line of JSON. Secrets are taken out of the values, before quoting."""
    whole = {"event": name, "time": round(now, 3), **facts}
    return json.dumps(_plain(whole, redact), allow_nan=False, separators=(",", ":"))


def _plain(node: Any, redact: Redact) -> Any:
    match node:
        case str():
            return redact(node)
        case float() if not math.isfinite(node):
            return None
        case Mapping():
            return {redact(str(key)): _plain(value, redact) for key, value in node.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(value, redact) for value in node]
        case bool() | int() | float() | None:
            return node
        case _:
            return redact(str(node))
