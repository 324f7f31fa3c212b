"""Which presenter a run gets: the live screen on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from mtrl_cli.display.lines import Redact
from mtrl_cli.display.plain import PlainPresenter
from mtrl_cli.display.state import DisplayPlan, RunState, Stopping
from mtrl_cli.display.terminal import Screen, abilities

TICK = 0.25
"""Seconds between two calls of `Presenter.tick`."""


class Presenter(Protocol):
    """Shows a run. All calls come from the event loop's thread."""

    @property
    def state(self) -> RunState: ...

    def observe(self, event: object) -> None:
        """Take an event in. Cheap, and never raises: it is called from inside the run."""
        ...

    def tick(self) -> None: ...

    def stopping(self, stopping: Stopping) -> None:
        """A stop was requested, or went one stage further."""
        ...

    def close(self) -> None:
        """Give the terminal back and print the summary. Idempotent."""
        ...


def presenter(
    plan: DisplayPlan,
    *,
    redact: Redact,
    play: str | None = None,
    environ: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> Presenter:
    """The presenter for standard output as it is; another ``stream`` gets plain lines."""
    able, state = abilities(environ), RunState(plan, time.monotonic())
    screen = Screen(stream or sys.stdout)
    if not able.live or stream not in (None, sys.stdout):
        return PlainPresenter(state, screen, redact=redact, play=play)
    from mtrl_cli.display.live import LivePresenter

    return LivePresenter(
        state, screen, redact=redact, play=play, colour=able.colour, unicode=able.unicode
    )
