"""One run in the foreground: its event loop, its screen, its signals, its exit code."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from mtrl_cli.cli.failures import FAILED, Teller, innermost
from mtrl_cli.cli.running.blocked import LoopWatch
from mtrl_cli.cli.running.live_file import LiveFile
from mtrl_cli.cli.running.signals import INTERRUPTED, Signals
from mtrl_cli.display import lines
from mtrl_cli.display.events import Failed
from mtrl_cli.display.keyboard import KEYBOARD
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.presenter import TICK, Presenter, presenter
from mtrl_cli.display.snapshot import to_record
from mtrl_cli.display.state import RunState
from mtrl_cli.display.summary import failure
from mtrl_cli.display.terminal import Screen, columns
from mtrl_cli.display.text import harmless
from mtrl_cli.display.views import Stopping
from mtrl_cli.display.wrapping import laid_out
from mtrl_cli.rollout.events import Observer
from mtrl_cli.runs.stop import Stage, StopRequest
from mtrl_cli.training.events import Notice, RunFinished

FINISHED, QUARANTINED = 0, 5

LINGER = 3.0
"""Seconds that threads may keep the process alive after the run has ended and said so."""


@dataclass(frozen=True, slots=True)
class Output:
    """How a run is shown."""

    quiet: bool = False
    """The summary only."""
    events: TextIO | None = None
    """Where events are printed as JSON."""
    goes_on: bool = False
    """Another run follows in this process."""


class Work(Protocol):
    """`train` or `play`, given everything but who watches and who stops."""

    def __call__(
        self, *, observer: Observer, stop: StopRequest
    ) -> Coroutine[Any, Any, RunFinished]: ...


class Session:
    """Runs one piece of work to its end, whatever that end is."""

    def __init__(
        self,
        *,
        plan: DisplayPlan,
        teller: Teller,
        play: str | None,
        output: Output,
    ) -> None:
        self._teller = teller
        self._output = output
        self._presenter: Presenter = presenter(
            plan, redact=teller.redact, play=play, quiet=output.quiet, events=output.events
        )
        self._signals = Signals(last_words=self._last_words)
        self._broken: Exception | None = None
        self._live = LiveFile(teller.redact)

    @property
    def state(self) -> RunState:
        """What is known of the run."""
        return self._presenter.state

    @property
    def signalled(self) -> bool:
        """Whether a signal asked for the end."""
        return self._signals.code is not None

    def run(self, work: Work) -> int:
        """The exit code."""
        code = FAILED
        # A run makes many short-lived objects and few cycles; collecting less often saved 15 to
        # 25 % of the CPU of a turn over HTTP.
        gc.set_threshold(20_000, 20, 20)
        with asyncio.Runner() as runner:
            try:
                finished = runner.run(self._watched(work))
            except (Exception, asyncio.CancelledError, KeyboardInterrupt) as error:
                self._presenter.close()
                code = self._failed(error)
            else:
                if self._presenter.state.finished is None:
                    self._presenter.observe(finished)
                self._presenter.close()
                code = self._code(finished)
            if self._broken is not None:
                self._teller.tell(self._broken)
            # From here on there is nothing left to wait for: a thread that hangs in foreign code
            # must not keep the process.
            watchdog = leave_after(LINGER, code)
        if self._output.goes_on:
            watchdog.cancel()
        return code

    async def _watched(self, work: Work) -> RunFinished:
        stop = StopRequest(self._signals.abort)
        with self._signals.handled(stop, goes_on=self._output.goes_on):
            watch = LoopWatch(self._blocked)
            watch.start()
            screen = asyncio.create_task(self._draw(stop, watch))
            try:
                return await work(observer=self._observe, stop=stop)
            finally:
                watch.close()
                screen.cancel()
                self._live.remove()
                (ended,) = await asyncio.gather(screen, return_exceptions=True)
                if isinstance(ended, Exception):
                    self._broken = self._broken or ended
                # While signals are still handled: after this one may end the process as it is.
                KEYBOARD.give_back()

    def _observe(self, event: object) -> None:
        """A screen that breaks must not break the run: its failure is told at the end."""
        try:
            self._presenter.observe(event)
        except Exception as error:
            self._broken = self._broken or error

    def _blocked(self, told: str) -> None:
        """In a thread: the event loop stands still, and nobody else draws. Before there is a run,
        it is what is imported that takes so long."""
        if self._presenter.state.run is None:
            return
        self._observe(Notice(told))
        with contextlib.suppress(Exception):  # the loop moves again and draws, too
            self._presenter.tick()

    async def _draw(self, stop: StopRequest, watch: LoopWatch) -> None:
        """Draw a few times a second, and say at once when a stop goes one stage further."""
        shown = Stage.RUN
        while True:
            watch.beat()
            if stop.stage > shown:
                shown = stop.stage
                since = asyncio.get_running_loop().time()
                self._presenter.stopping(Stopping(int(shown), stop.cause, since))
            self._presenter.tick()
            self._tell_watchers()
            await self._next_drawing(stop, shown)

    def _tell_watchers(self) -> None:
        state, now = self._presenter.state, asyncio.get_running_loop().time()
        if state.folder:
            self._live.write(state.folder, now, lambda: to_record(state, now))

    async def _next_drawing(self, stop: StopRequest, shown: Stage) -> None:
        if shown is Stage.STOP:
            await asyncio.sleep(TICK)
            return
        try:
            async with asyncio.timeout(TICK):
                await stop.reached(Stage(shown + 1))
        except TimeoutError:
            return

    def _failed(self, error: BaseException) -> int:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return self._signals.code or INTERRUPTED
        code = self._teller.tell(error)
        self._presenter.observe(Failed(" ".join(str(innermost(error)).split()), code))
        screen, state = Screen(sys.stderr), self._presenter.state
        if state.failed is not None:
            width, redact = columns(sys.stderr), self._teller.redact
            for line in laid_out(failure(state.failed), width, redact, below_error=True):
                screen.line(line)
        elif state.folder:
            screen.line(harmless(f"  run: {state.folder}"))
        return code

    def _code(self, finished: RunFinished) -> int:
        if finished.status == "cancelled":
            return self._signals.code or INTERRUPTED
        if finished.status != "finished":
            return FAILED
        return QUARANTINED if finished.quarantined else FINISHED

    def _last_words(self) -> str:
        """What an abort says. Called from a signal handler or a thread: nothing here may wait or
        draw."""
        state = self._presenter.state
        counted = ", ".join(state.borrowed_names())
        told = f"aborted: {lines.counted(len(state.groups), 'group')} in flight dropped"
        told += f"; not returned: {counted}" if counted else "; nothing was known to be held"
        if state.folder:
            told += f"; {state.folder}/ledger.jsonl names what may still live"
        return harmless(self._teller.redact(told))


def leave_after(seconds: float, code: int) -> threading.Timer:
    """End the process with ``code`` even if a thread does not let it end."""

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(code)

    watchdog = threading.Timer(seconds, leave)
    watchdog.daemon = True
    watchdog.start()
    return watchdog
