"""The frame around a run's work: its folder, its parts, its end.

    folder → parts (server, chat, task, environments) → the work → parts returned → status

Whatever happens in between, everything that was borrowed is returned before the status is
written. A first stop request drains: the work is asked to end after what is issued; a start-up
has issued nothing, and is cancelled. A second one, or a drain that takes longer than
``run.drain_timeout``, cancels the work, and so does one that cannot get on, as the server lets
nobody send for longer than is left of it; returning what was borrowed is never cancelled.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mtrl_cli.assembly import Parts, assemble, notices
from mtrl_cli.config.schema import Experiment
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.events import MemberFinished, Observer
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.settle import original
from mtrl_cli.rollout.task_fault import TaskBrokenError
from mtrl_cli.runs.commits import read_history
from mtrl_cli.runs.control import Ask, RunControl
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.ledger import unstepped
from mtrl_cli.runs.places import runs_dir_option
from mtrl_cli.runs.reap import read_entries
from mtrl_cli.runs.stop import Stage, StopRequest
from mtrl_cli.runs.takeover import ANEW, beginning
from mtrl_cli.servers.interface import TrainingService
from mtrl_cli.training.draining import until_drain
from mtrl_cli.training.evaluation.evaluate import EvaluationPlan, evaluate
from mtrl_cli.training.evaluation.games import Evaluations
from mtrl_cli.training.events import (
    TREND_KEPT,
    Evaluated,
    FolderMade,
    Notice,
    PhaseStarted,
    Resumable,
    RunFailed,
    RunFinished,
    RunStarted,
)
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.telling.batches import Batches
from mtrl_cli.training.telling.failing import Failing
from mtrl_cli.training.telling.relaying import Relaying
from mtrl_cli.training.telling.straining import strain_told
from mtrl_cli.training.totals import Totals

Work = Callable[[Parts], Coroutine[Any, Any, None]]

_GLANCE = 0.25
"""Seconds between two looks, during a drain, at whether it can still get on."""


@dataclass(slots=True)
class Outcome:
    """What the work has reached so far; fit to be reported at any moment."""

    totals: Totals = field(default_factory=Totals)
    policy: str | None = None
    before: Evaluated | None = None
    after: Evaluated | None = None
    evaluated: Evaluated | None = None


class Frame:
    """One run, from its first file to its last."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        observer: Observer,
        stop: StopRequest,
        *,
        trains: bool,
    ) -> None:
        self.experiment = experiment
        self.trains = trains
        self.plan = TrainingPlan(experiment)
        self.folder = folder
        self.resources = RolloutResources(
            folder.ledger, prefix=f"a{folder.attempt}/", observer=observer
        )
        self.folder.count_borrows(self._borrows)
        self.control = RunControl(self.folder.path, self.folder.attempt, self._told)
        noted = _noting(folder, observer)
        self._sinks: Relaying | None = None
        if experiment.sinks:
            self._sinks = Relaying(experiment, self.folder, noted, self.evaluated("before"))
        self.observer = self._sinks or noted
        self.stop = stop
        self.outcome = Outcome()
        self.behind = 0
        """Steps that earlier attempts have committed."""
        self._failing = Failing(self.notice)
        self.batches = Batches(self.notice, experiment.server, self._command())
        self._leaks = False
        """The server hands gradients that were not stepped on to the next model."""
        self._service: TrainingService | None = None
        """Once the parts are there and the work runs; before that a drain has nothing to wait
        for."""

    async def carry_out(self, work: Work) -> RunFinished:
        """Run ``work`` with assembled parts, and report how the run ended.

        Raises:
            MtrlError: the run failed; its folder says so too.
        """
        try:
            return await self._carried_out(work)
        finally:
            if self._sinks is not None:
                await self._sinks.close()

    async def _carried_out(self, work: Work) -> RunFinished:
        status = "failed"
        reason: str | None = None
        self.control.start()
        try:
            await self._settled(self._with_parts(work))
            status = "finished"
            if self.stop.draining:
                status, reason = "cancelled", self.stop.reason
        except BaseExceptionGroup as group:
            error = original(group)
            reason = self._reason(error)
            raise error from group
        except BaseException as error:
            reason = self._reason(error)
            raise
        finally:
            try:
                await self._end(status, reason)
            finally:  # a disk that is full takes no end, but what stands can be told
                if status == "failed":
                    self._failed()
        return self._finished(status, reason)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TaskBrokenError):
            with contextlib.suppress(OSError):  # a full disk is not what the run failed for
                self.folder.log(error.trace)
        return str(error) or type(error).__name__

    def notice(self, text: str) -> None:
        """Tell what ends nothing and should be known."""
        self.observer(Notice(text))

    def _command(self) -> str:
        """What shows whole episodes, as the end of a sentence."""
        if not self.plan.save_trajectories:
            return ""
        return f"; more: mtrl trajectory {self.folder.id}{runs_dir_option(self.folder.path.parent)}"

    def policy(self, policy: PolicySnapshot) -> None:
        """Note the policy that the run has reached."""
        self.outcome.policy = policy.uri
        self.folder.update(policy=policy.uri)

    def rollout(self, parts: Parts) -> ClientMultiTurnRollout:
        return ClientMultiTurnRollout(
            policy=parts.service,
            chat=parts.chat,
            task=parts.task,
            envs=parts.envs,
            harnesses=parts.harnesses,
            resources=self.resources,
            concurrency=self.experiment.run.concurrency,
            failure_rule=self.plan.failure_rule,
            observer=self._played,
        )

    def _played(self, event: object) -> None:
        """What the rollout tells; the log keeps the tracebacks of the task's own code."""
        if isinstance(event, MemberFinished):
            if event.trace is not None:
                self.folder.log(event.trace)
            if event.interrupts:
                self.stop.request(Stage.DRAIN, event.failure)
            self._failing.heard(event)
        self.observer(event)

    async def evaluate(
        self,
        parts: Parts,
        rollout: ClientMultiTurnRollout,
        policy: PolicySnapshot,
        plan: EvaluationPlan,
        label: str,
    ) -> Evaluated | None:
        """Evaluate ``policy`` and record it; None when nothing is to be played or a drain came."""
        if not plan.games or self.stop.draining:
            return None
        self.observer(PhaseStarted("evaluation"))
        games = evaluate(
            rollout,
            parts.task,
            policy,
            plan,
            run=self.folder.id,
            label=label,
            heard=lambda groups: self.batches.evaluated(groups, parts.task.tools, label),
        )
        played = await until_drain(games, self.stop)
        if played is None:
            return None
        first = None if label == "before" else "before"
        result = Evaluations(self.folder.path).record(played, against=first)
        self.tell_evaluation(result)
        return result

    def evaluated(self, label: str) -> Evaluated | None:
        """What an earlier attempt has recorded."""
        figures = self.folder.evaluation.get(label)
        if figures is None:
            return None
        known = {item.name for item in fields(Evaluated)}
        return Evaluated(**{name: value for name, value in figures.items() if name in known})

    def tell_evaluation(self, result: Evaluated) -> None:
        """Record an evaluation, and tell it."""
        self.folder.evaluated(result.label, asdict(result))
        self.observer(result)

    def announce(self, parts: Parts, steps: int, step: int = 0) -> None:
        """Tell that the work begins: of ``steps`` steps, ``step`` are behind us."""
        # Mean rewards of known policies, drawn beside the learning curve; a task may have them.
        references = dict(getattr(parts.task, "references", None) or {})
        self.folder.update(steps=steps, references=references)
        self.observer(
            RunStarted(
                run=self.folder.id,
                folder=str(self.folder.path),
                experiment=self.experiment.name,
                steps=steps,
                step=step,
                server=parts.server,
                references=references,
                rewards=tuple(self.outcome.totals.rewards[-TREND_KEPT:]),
            )
        )

    async def _with_parts(self, work: Work) -> None:
        folder = self.folder
        self.observer(FolderMade(folder.id, str(folder.path), folder.attempt, self.behind))
        self.observer(PhaseStarted("start-up"))
        for text in notices():
            self.notice(text)
        async with self._parts() as parts:
            self._service = parts.service
            can = parts.service.capabilities
            self._leaks = can.leaks_gradients
            self.folder.update(server={"snapshots": can.snapshots, "leaks_gradients": self._leaks})
            if parts.listing is not None:
                self.folder.update(tools=dict(parts.listing))
            try:
                async with strain_told(parts.service, self.observer):
                    await work(parts)
            finally:
                self.observer(PhaseStarted("shutdown"))
                self.folder.update(environments=dict(parts.watch.counts))

    def _parts(self) -> AbstractAsyncContextManager[Parts]:
        return assemble(
            self.experiment,
            self.folder.path,
            self.resources,
            training=self.trains,
            tell=self.notice,
        )

    async def _settled(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work`` under the stop request; cancel it when draining is not enough."""
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(self._cancel_when_told(task))
        try:
            await task
        except asyncio.CancelledError:
            if not self.stop.draining:
                raise
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _cancel_when_told(self, task: "asyncio.Future[None]") -> None:
        await self.stop.reached(Stage.DRAIN)
        if self._service is not None:
            await self._drained(self._service)
        task.cancel()

    async def _drained(self, service: TrainingService) -> None:
        """Return when a drain has had its time, or can use no more of it."""
        left = self.experiment.run.drain_timeout
        deadline = time.monotonic() + left
        while self.stop.stage < Stage.STOP and left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_GLANCE, left)):
                    await self.stop.reached(Stage.STOP)
            left = deadline - time.monotonic()
            if 0 < left <= (closed := service.closed_for) and self.stop.stage < Stage.STOP:
                told = f"the server lets nothing be sent for {closed:.0f} s more"
                self.notice(f"{told}, and the drain has {left:.0f} s left: it ends now")
                break
        self.stop.request(Stage.STOP)

    async def _end(self, status: str, reason: str | None) -> None:
        await self.resources.close()
        try:
            self.folder.end(status, reason)
        finally:
            self.control.close()

    def _borrows(self) -> dict[str, Any]:
        """What is not returned, for ``run.json``."""
        quarantined = self.resources.quarantined
        return {
            "held": len(self.resources.live) - len(quarantined),
            "quarantined": [borrow.describe() for borrow in quarantined],
        }

    def _told(self, ask: Ask) -> None:
        """A request from outside, in the control's thread: the event loop may be blocked."""
        if ask is Ask.KILL:
            self.stop.abort()
        else:
            self.stop.request(Stage(ask), "mtrl cancel")

    def _finished(self, status: str, reason: str | None) -> RunFinished:
        outcome, totals = self.outcome, self.outcome.totals
        finished = RunFinished(
            run=self.folder.id,
            folder=str(self.folder.path),
            status=status,
            reason=reason,
            steps=totals.steps,
            episodes=totals.episodes,
            sampled_tokens=totals.sampled_tokens,
            policy=outcome.policy,
            before=outcome.before,
            after=outcome.after,
            skipped=dict(totals.skipped),
            failed=totals.failed,
            quarantined=self._left(),
            resumable=None if status == "finished" else self._resumable(),
            evaluated=outcome.evaluated,
            seconds=self.folder.seconds,
        )
        self.observer(finished)
        return finished

    def _failed(self) -> None:
        folder = self.folder
        told = RunFailed(folder.id, str(folder.path), self._resumable(), self._left())
        self.observer(told)

    def _left(self) -> tuple[str, ...]:
        """What is not returned, of earlier attempts too."""
        left = (borrow.describe() for borrow in self.resources.live)
        return (*self.folder.inherited, *left)

    def _resumable(self) -> Resumable | None:
        """What a training run that has not finished can be resumed from, if it has begun."""
        try:
            history = read_history(self.folder.path / "commits.jsonl")
            left = unstepped(read_entries(self.folder.path)) if self._leaks else ()
        except MtrlError:
            return None  # told when it is resumed
        if not self.trains or history.last is None:
            return None
        stands = beginning(history).last
        return Resumable(history.last.step, ANEW if stands is None else stands.step, left)


def _noting(folder: RunFolder, observer: Observer) -> Observer:
    """``observer``, while the run's folder keeps what is told as a notice."""

    def noted(event: object) -> None:
        if isinstance(event, Notice):
            with contextlib.suppress(OSError):  # a full disk ends the run where it must
                folder.notice(event.text)
        observer(event)

    return noted


def cancelled_before_it_began(stop: StopRequest) -> RunFinished:
    """The end of a run that was stopped before it had a folder."""
    reason = f"{stop.reason} before the run began"
    return RunFinished("", "", "cancelled", reason, 0, 0, 0, None, None, None, {})
