"""The live screen: repainted a few times a second on a terminal.

Finished steps are printed above as lines and scroll away, and so are finished groups where a step
has few (`DisplayPlan.tells_groups`). The table lists groups in flight; those of a training that
have ended last fill it up, dim, so that it does not come and go between steps. The observer only
counts, whatever the number of events: drawing happens in `tick`.

Where the terminal breaks lines anew at another width, what was drawn takes as many rows there as
its lines then need: these are taken away, and the screen is drawn below what stands above. Nothing
is drawn before the width has stayed the same for a moment, as a terminal may tell it late.

In the background the terminal is the shell's: only lines are printed there, as by any other job,
and nothing that stands on it is painted over.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import IO, cast

from rich.console import Console, ConsoleDimensions, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from mtrl_cli.display import lines
from mtrl_cli.display.columns import step_lines
from mtrl_cli.display.keyboard import Keyboard
from mtrl_cli.display.panels import ASCII, HEAD_LINES, UNICODE, group_table, head
from mtrl_cli.display.state import RunState
from mtrl_cli.display.summary import summary
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless
from mtrl_cli.display.views import Stopping
from mtrl_cli.display.wrapping import HANGING, wrapped
from mtrl_cli.rollout.events import GroupFinished
from mtrl_cli.training.events import Evaluated, FolderMade, Notice, StepFinished

STEADY = 0.4
"""Seconds for which a terminal keeps its width before anything is drawn in a new one. tmux tells
one up to a quarter of a second after it has broken its lines anew."""


class LivePresenter:
    """Repaints a table of groups in flight."""

    def __init__(
        self,
        state: RunState,
        screen: Screen,
        *,
        redact: lines.Redact,
        colour: bool = True,
        unicode: bool = True,
        play: str | None = None,
        keyboard: Keyboard | None = None,
        background: Callable[[], bool] = lambda: False,
        reflows: bool = True,
        size: tuple[int, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self._screen = screen
        self._redact = redact
        self._play = play
        self._keyboard = keyboard
        self._background = background
        self._clock = clock
        self._glyphs = UNICODE if unicode else ASCII
        self._above: deque[str] = deque()
        width, height = size or (None, None)
        self._console = Console(
            file=cast("IO[str]", screen),
            force_terminal=True,
            no_color=not colour,
            highlight=False,
            width=width,
            height=height,
        )
        self._live = self._made()
        self._reflows = reflows
        self._shown: tuple[Group, ConsoleDimensions] | None = None
        """What was drawn last, and in which size."""
        self._tall = 0
        """Groups that the table has listed at most."""
        self._longest = 0
        """Characters of the longest name of what a group has played."""
        self._width, self._since = self._console.width, -STEADY
        """The width at the last look, and since when it is that."""
        self._closed = False

    def observe(self, event: object) -> None:
        now = self._clock()
        kind = type(event)
        # What is said of a finished group is read before the state lets go of it.
        group = self.state.in_flight(event) if isinstance(event, GroupFinished) else None
        self.state.apply(event, now)
        if kind is StepFinished:
            self._above.extend(step_lines(self.state, now, self._console.width))
        elif group is not None and isinstance(event, GroupFinished):
            if not self.state.plan.tells_groups:
                return
            group.outcome = event.outcome
            self._longest = max(self._longest, len(lines.group_task(group)))
            every = self.state.plan.groups(self.state.steps)
            self._above.append(lines.group_line(group, now, every, self._longest))
        elif kind is FolderMade:
            self._above.append(lines.beginning_line(cast("FolderMade", event)))
        elif kind is Evaluated:
            self._above.append(lines.evaluated_line(cast("Evaluated", event)))
        elif kind is Notice:
            self._above.append(f"warning: {harmless(cast('Notice', event).text)}")

    def tick(self) -> None:
        """Draw. Called a few times a second."""
        if self._closed:
            return
        # Each time: a process may go to the background, and come back.
        if self._background():
            self._let_go()
            self._print_above()
            return
        if self._keyboard is not None and self._keyboard.take(keys=self.state.plan.watched):
            self._begin_afresh()
        if self._reflows and not self._steady():
            return
        self._fit()
        if not self._live.is_started:
            self._live.start()
        self._print_above()
        size = self._console.size
        self._shown = self._drawn(size), size
        self._live.update(self._shown[0], refresh=True)

    def stopping(self, stopping: Stopping) -> None:
        self.state.stopping = stopping
        if self._background():
            self._above.append(lines.stopping_line(self.state, stopping))
        self.tick()

    def close(self) -> None:
        """Give the terminal back, and say what was reached, if the run came to an end."""
        if self._closed:
            return
        self._closed = True
        if self._background():
            self._let_go()
        self._fit()
        self._live.stop()
        self._print_above()
        if self._keyboard is not None:
            self._keyboard.give_back()
        told = summary(
            self.state,
            self._clock(),
            self._play,
            width=self._console.width,
            redact=self._redact,
        )
        for line in told:
            self._screen.line(line)

    def _made(self) -> Live:
        return Live(console=self._console, auto_refresh=False, transient=True)

    def _let_go(self) -> None:
        """Leave the terminal as it is to who has it now."""
        if self._live.is_started:
            self._begin_afresh()
        if self._keyboard is not None:
            self._keyboard.give_back()

    def _begin_afresh(self) -> None:
        """Paint over nothing that stands there: somebody else has had the terminal."""
        self._console.quiet = True
        self._live.stop()
        self._console.quiet = False
        self._live = self._made()
        self._shown = None

    def _steady(self) -> bool:
        """Whether the width has stayed the same for a moment."""
        now, width = self._clock(), self._console.width
        if width != self._width:
            self._width, self._since = width, now
        return now - self._since >= STEADY

    def _fit(self) -> None:
        """Take away what was drawn in another width, as it stands now."""
        if self._shown is None or not self._reflows:
            return
        (drawn, before), width = self._shown, self._console.width
        if width == before.width:
            return
        options = self._console.options.update_width(before.width)
        lines = self._console.render_lines(drawn, options, pad=False)[: before.height]
        rows = sum(max(-(-Segment.get_line_length(line) // width), 1) for line in lines)
        up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
        erase = (ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
        self._console.control(Control(*erase, *(up * (rows - 1))))
        self._begin_afresh()

    def _print_above(self) -> None:
        while self._above:
            text = self._redact(self._above.popleft())
            for line in wrapped(text, self._console.width, HANGING):
                self._console.print(Text(line), soft_wrap=True)

    def _drawn(self, size: ConsoleDimensions) -> Group:
        width, height = size
        now = self._clock()
        parts = [head(self.state, now, width, self._glyphs, self._redact)]
        groups = self.state.groups.values()
        rows = max(height - HEAD_LINES, 1)
        self._tall = min(max(self._tall, sum(group.begun for group in groups)), rows)
        if not groups and not (self._tall and self.state.lately):
            return Group(*parts)
        table = group_table(
            self.state, now, width, rows, self._glyphs, self._redact, tall=self._tall
        )
        return Group(*parts, Text(""), table)
