"""Which presenter a run gets: the live screen on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from mtrl_cli.display.lines import Redact
from mtrl_cli.display.plain import PlainPresenter
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.state import RunState
from mtrl_cli.display.terminal import Screen, abilities, columns, in_background
from mtrl_cli.display.views import Stopping

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
    quiet: bool = False,
    events: TextIO | None = None,
) -> Presenter:
    """The presenter for the outputs as they are.

    Args:
        quiet: only the summary is printed.
        events: where events are printed as JSON; texts go to standard error then.
    """
    state = RunState(plan, time.monotonic())
    if events is not None:
        from mtrl_cli.display.events import EventPresenter

        texts = PlainPresenter(state, Screen(sys.stderr), redact=redact, play=play, quiet=quiet)
        return EventPresenter(texts, Screen(events), redact=redact)
    able, screen = abilities(environ), Screen(sys.stdout)
    if quiet or not able.live:
        width = columns() if able.live else None
        return PlainPresenter(state, screen, redact=redact, play=play, quiet=quiet, width=width)
    from mtrl_cli.display.keyboard import KEYBOARD
    from mtrl_cli.display.live import LivePresenter

    return LivePresenter(
        state,
        screen,
        redact=redact,
        colour=able.colour,
        unicode=able.unicode,
        play=play,
        keyboard=KEYBOARD,
        background=in_background,
        reflows=able.reflows,
    )
