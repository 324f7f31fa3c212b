"""Plain lines, for pipes, files and CI: one per step, one per evaluation, and signs of life."""

import time
from collections.abc import Callable

from mtrl_cli.display import lines
from mtrl_cli.display.columns import step_lines
from mtrl_cli.display.state import RunState
from mtrl_cli.display.summary import summary
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless, reward
from mtrl_cli.display.views import Stopping
from mtrl_cli.display.words import outcome
from mtrl_cli.rollout.events import GroupFinished
from mtrl_cli.training.events import (
    Evaluated,
    FolderMade,
    Notice,
    PhaseStarted,
    RunStarted,
    StepFinished,
)

ALIVE_EVERY = 60.0
"""Seconds without a line after which one says that the run is alive."""

PROGRESS_EVERY = 10.0
"""Seconds between two lines about an evaluation in progress."""


class PlainPresenter:
    """Prints a line when something ends, and never moves the cursor; ``quiet`` prints the
    summary only, in a ``width`` where that is a terminal's."""

    def __init__(
        self,
        state: RunState,
        screen: Screen,
        *,
        redact: lines.Redact,
        play: str | None = None,
        quiet: bool = False,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        self.state = state
        self._screen = screen
        self._redact = redact
        self._play = play
        self._quiet = quiet
        self._width = width
        self._clock = clock
        self._wall = wall
        self._last_line = clock()
        self._last_progress = 0
        self._closed = False
        self._named = False

    def observe(self, event: object) -> None:
        now = self._clock()
        # The mean of a finished group is read before the state lets go of the group.
        group = self.state.in_flight(event) if isinstance(event, GroupFinished) else None
        self.state.apply(event, now)
        match event:
            case FolderMade():
                self._named = True
                self._info(f"{lines.beginning_line(event)}; starting server and environments")
            case RunStarted():
                named = f"run {harmless(event.run)} in {harmless(event.folder)}"
                self._info("server and environments are there" if self._named else named)
            case StepFinished():
                self._info(*step_lines(self.state, now))
            case Evaluated():
                self._info(lines.evaluated_line(event))
            case Notice():
                self._say("WARN", harmless(event.text))
            case PhaseStarted(phase="evaluation"):
                self._last_progress = 0
                self._info(lines.progress_line(self.state))
            case GroupFinished() if group is not None and self.state.plan.keep_groups:
                mean = reward(event.mean_reward)
                ended = harmless(outcome(event.outcome))
                self._info(f"group {event.group} {ended} | reward {mean}")

    def tick(self) -> None:
        """Called a few times a second."""
        now, evaluation = self._clock(), self.state.evaluation
        quiet = now - self._last_line
        if evaluation is not None and evaluation.done > self._last_progress:
            if quiet >= PROGRESS_EVERY:
                self._last_progress = evaluation.done
                self._info(
                    ", ".join((lines.progress_line(self.state), *lines.etas(self.state, now)))
                )
        elif quiet >= ALIVE_EVERY:
            self._info(lines.alive_line(self.state, now))

    def stopping(self, stopping: Stopping) -> None:
        self.state.stopping = stopping
        self._say("WARN", lines.stopping_line(self.state, stopping))

    def close(self) -> None:
        """Say what was reached, if the run came to an end."""
        if self._closed:
            return
        self._closed = True
        told = summary(
            self.state, self._clock(), self._play, width=self._width, redact=self._redact
        )
        for line in told:
            self._screen.line(line)

    def _info(self, text: str) -> None:
        self._say("INFO", text)

    def _say(self, level: str, text: str) -> None:
        self._last_line = self._clock()
        if self._quiet:
            return
        self._screen.line(self._redact(f"{self._wall()} {level:<4}  {text}"))
