"""For scripts: a run's folder and parts in one scope, and Ctrl-C that leaves nothing behind.

::

    import mtrl_cli.quiet                       # Ctrl-C is quiet from here on

    async def main() -> None:
        composed = compose("blackjack", sys.argv[1:])
        async with open_run(composed, "rollout") as run:
            groups = await run.rollout().run([...])

    run(main())

`open_run` creates the folder, borrows the parts, and returns all of it whatever happens inside;
what cannot be returned is named on stderr and in the folder. `run` is `asyncio.run` for it: the
first Ctrl-C or SIGTERM cancels ``main``, which returns what it holds, and the process ends with
130 or 143; the third one leaves at once. `mtrl cancel` works as for any run. An `MtrlError` is
told without a traceback.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from mtrl_cli.assembly import Parts, assemble, check_experiment
from mtrl_cli.config.compose import Composed
from mtrl_cli.config.resolve import refuse_invalid, resolve
from mtrl_cli.config.schema import Experiment
from mtrl_cli.display.text import harmless
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.settle import original
from mtrl_cli.runs.control import Ask, RunControl
from mtrl_cli.runs.folder import SCRIPT, RunFolder
from mtrl_cli.runs.stop import signal_name
from mtrl_cli.training.plan import TrainingPlan

_SAME = 0.2
"""Seconds within which a second signal counts as the same: some launchers deliver twice."""

_LEAVE = 3
"""The signal that waits for nothing."""


@dataclass(frozen=True)
class Run:
    """What a script works with, until the scope of `open_run` is left."""

    experiment: Experiment
    plan: TrainingPlan
    folder: RunFolder
    resources: RolloutResources
    parts: Parts

    def rollout(self) -> ClientMultiTurnRollout:
        """A rollout on the run's parts, with the experiment's bounds."""
        return ClientMultiTurnRollout(
            policy=self.parts.service,
            chat=self.parts.chat,
            task=self.parts.task,
            envs=self.parts.envs,
            harnesses=self.parts.harnesses,
            resources=self.resources,
            concurrency=self.experiment.run.concurrency,
            failure_rule=self.plan.failure_rule,
        )


@asynccontextmanager
async def open_run(composed: Composed, kind: str) -> AsyncIterator[Run]:
    """A run of a composed experiment. ``kind`` is ``train`` or ``rollout``.

    Raises:
        MtrlError: the experiment is wrong, or a part of it is not to be had.
    """
    training = kind == "train"
    experiment = resolve(composed)
    refuse_invalid(experiment, composed, training=training)
    await check_experiment(experiment)
    folder = RunFolder.create(
        Path(experiment.run.dir), experiment.name, kind, composed.yaml, composed.redact
    )
    folder.update(recorded=SCRIPT)
    resources = RolloutResources(folder.ledger, prefix=f"a{folder.attempt}/")
    status, reason = "failed", None
    control = RunControl(folder.path, folder.attempt, _cancelling_this_task())
    control.start()
    try:
        async with assemble(
            experiment,
            folder.path,
            resources,
            training=training,
            tell=lambda text: _say(composed.redact(text)),
        ) as parts:
            if parts.listing is not None:
                folder.update(tools=dict(parts.listing))
            yield Run(experiment, TrainingPlan(experiment), folder, resources, parts)
            folder.update(environments=dict(parts.watch.counts))
        status = "finished"
    except asyncio.CancelledError as cancelled:
        status, reason = "cancelled", f"stopped by {_cause(cancelled)}"
        raise
    except BaseException as error:
        reason = str(error) or type(error).__name__
        raise
    finally:
        left = [borrow.describe() for borrow in await resources.close()]
        folder.update(borrows={"held": 0, "quarantined": left})
        folder.end(status, reason)
        control.close()
        for text in left:
            sys.stderr.write(harmless(composed.redact(f"not returned: {text}")) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(harmless(f"note: {text}") + "\n")


def _cancelling_this_task() -> Callable[[Ask], None]:
    """What a request of `mtrl cancel` does; it arrives in another thread."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def told(ask: Ask) -> None:
        if ask is Ask.KILL:
            os._exit(128 + signal.SIGINT)
        if not task.cancelling():
            loop.call_soon_threadsafe(task.cancel, "mtrl cancel")

    return told


def _cause(cancelled: asyncio.CancelledError) -> str:
    """Who cancelled; the script itself may have, and says nothing then."""
    return str(cancelled.args[0]) if cancelled.args else "the user"


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` to its end; see the module's docstring. Returns only when it succeeded."""
    failure: BaseException | None = None
    stopped: int | None = None
    try:
        stopped = asyncio.run(_until_stopped(main))
    except* MtrlError as errors:
        failure = original(errors)
    if failure is not None:
        sys.stderr.write(_told(failure))
        raise SystemExit(2 if isinstance(failure, UsageError) else 1)
    if stopped is not None:
        raise SystemExit(128 + stopped)


async def _until_stopped(main: Coroutine[Any, Any, None]) -> int | None:
    """The signal that stopped ``main``; None when none came. `mtrl cancel` counts as SIGINT."""
    work = asyncio.ensure_future(main)
    signals = _Signals(work)
    signals.install()
    try:
        await work
    except asyncio.CancelledError:
        return signals.first or signal.SIGINT
    finally:
        signals.remove()
    return signals.first


class _Signals:
    """Turns SIGINT and SIGTERM into one cancellation of a task."""

    def __init__(self, work: "asyncio.Future[None]") -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._before: dict[int, Any] = {}
        self._last = 0.0
        self._count = 0
        self.first: int | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)

    def remove(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < _SAME:
            return
        self._last = now
        self._count += 1
        if self.first is None:
            self.first = number
            self._loop.call_soon_threadsafe(self._work.cancel, signal_name(number))
        elif self._count >= _LEAVE:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(128 + number)


def _told(error: BaseException) -> str:
    """What went wrong, where, and what to write instead."""
    labels = {"error": str(error), "at": getattr(error, "at", None)}
    labels["hint"] = getattr(error, "hint", None)
    return "".join(f"{label:>5}: {harmless(text)}\n" for label, text in labels.items() if text)
