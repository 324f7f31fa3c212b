"""``mtrl watch RUN``: the screen of a run that another process carries out. Nothing is written."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from mtrl_cli.cli.commands.show import show_run
from mtrl_cli.cli.running.live_file import restored
from mtrl_cli.cli.running.signals import INTERRUPTED, give_terminal_back, leave, suspend
from mtrl_cli.display.keyboard import KEYBOARD
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.presenter import Presenter, presenter
from mtrl_cli.display.terminal import Screen
from mtrl_cli.display.text import harmless
from mtrl_cli.display.views import GroupView
from mtrl_cli.runs.registry import RunRecord, find_run, read_run
from mtrl_cli.training.events import RunFinished
from mtrl_cli.training.telling.reading import Told, in_flight, story

LOOK_EVERY = 0.5
"""Seconds between two looks at the files."""

DRAW_EVERY = 0.25

_FILES = ("run.json", "commits.jsonl", "metrics.jsonl", "groups.jsonl")


class _Left(Exception):  # noqa: N818 - the watcher's wish, not an error
    """``q``, or Ctrl-C."""

    def __init__(self, code: int) -> None:
        self.code = code


def watch_run(asked: str, runs: Path) -> int:
    """Show the run that ``asked`` names until it ends; the exit code.

    Raises:
        NoSuchRun: there is none, or several.
        MtrlError: its files are damaged.
    """
    run = find_run(runs, asked)
    if run.status != "running":
        return show_run(asked, runs, as_json=False)
    watcher = _Watcher(run)
    try:
        with _signals():
            watcher.follow()
    except _Left as left:
        watcher.leave()
        told = f"no longer watching {run.id}; the run goes on"
        Screen(sys.stderr).line(harmless(told))
        return left.code
    finally:
        give_terminal_back(b"")
    return 0


@contextmanager
def _signals() -> Iterator[None]:
    """What a watcher does on a signal. Once it leaves, more of them change nothing."""
    signal.signal(signal.SIGTSTP, suspend)
    signal.signal(signal.SIGQUIT, leave)
    asked = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in asked:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in asked:
            signal.signal(number, signal.SIG_IGN)


class _Watcher:
    """Keeps a presenter as the run's files tell."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._told: list[Told] = []
        self._stamp: tuple[int, ...] = ()
        self._presenter = self._fresh()

    def follow(self) -> None:
        """Show the run until it has ended."""
        while True:
            self._look()
            if self._presenter.state.finished is not None:
                self._presenter.close()
                return
            end = time.monotonic() + LOOK_EVERY
            while time.monotonic() < end:
                self._presenter.tick()
                if "q" in KEYBOARD.pressed(DRAW_EVERY):
                    raise _Left(0)

    def leave(self) -> None:
        self._presenter.state.finished = None
        self._presenter.close()

    def _fresh(self) -> Presenter:
        state = self._run.state
        kind, experiment = state.get("kind", "run"), state.get("experiment", "?")
        plan = DisplayPlan(
            f"watch {kind} {experiment}", watched=True, keep_groups=kind == "rollout"
        )
        return presenter(plan, redact=str)

    def _look(self) -> None:
        """Take in what the files say since the last look."""
        self._run = read_run(self._run.path)
        stamp = _stamp(self._run)
        if stamp != self._stamp:
            self._stamp = stamp
            self._take(story(self._run))
        self._moment()

    def _take(self, told: list[Told]) -> None:
        before = len(self._told)
        if not before or _events(told)[:before] != _events(self._told):
            # The first look, or an attempt that went back: what was is known, not news.
            state = self._fresh().state if before else self._presenter.state
            state.started = _monotonic(told[0][0])
            for when, event in told:
                state.apply(event, _monotonic(when))
            if before:
                self._presenter.state.become(state)
        else:
            for _, event in told[before:]:
                self._presenter.observe(event)
        self._told = told

    def _moment(self) -> None:
        """What is in flight: as the run tells it, else as its record of groups does."""
        state, now = self._presenter.state, time.monotonic()
        if state.finished is not None:
            return
        if restored(state, self._run.path, now):
            return
        state.phase, state.rates.told = "running", None
        state.told_busy, state.told_eta = None, None
        state.groups = {
            one.group: state.groups.get(one.group)
            or GroupView(one.group, one.task, one.policy, one.policy_step, one.size, now)
            for one in in_flight(self._run.path)
        }


def _events(told: list[Told]) -> list[object]:
    return [event for _, event in told if not isinstance(event, RunFinished)]


def _stamp(run: RunRecord) -> tuple[int, ...]:
    found = [hash(run.status)]
    for name in _FILES:
        with suppress(OSError):
            found.append((run.path / name).stat().st_mtime_ns)
    return tuple(found)


def _monotonic(when: float) -> float:
    """A time of the wall clock on the clock that a screen counts with."""
    return time.monotonic() - (time.time() - when)


def _leave(number: int, frame: FrameType | None) -> None:
    raise _Left(INTERRUPTED)
