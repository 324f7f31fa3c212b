"""The training loop: from complete groups to committed policies.

One step is one pass of `TrainingLoop.run`: take the step's groups, keep what can be trained,
compute advantages, forward/backward, audit, optimizer step, publish, commit. Where
``train.max_policy_lag`` allows it, the groups of later steps are sampled meanwhile (see
`StreamingDriver`). A step consumes its groups whether they were trainable or not; an empty batch
sends nothing. After a drain request nothing is admitted; what was issued is still trained,
published and committed. The last commit of a run, of a drain, and every
``train.checkpoint_every``-th one has a training state, saved before its line is written: that is
where a resume can begin. With ``train.checkpoint_every: 0`` only a drain's has one.

On a server whose snapshots do not last, nothing may be in flight while they change: before the
optimizer step where sampling uses the live weights, before publishing where only the newest
snapshot is kept.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.driver import StreamingDriver
from mtrl_cli.rollout.events import TRAINING, Observer
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot, snapshot_name
from mtrl_cli.rollout.ports import Task
from mtrl_cli.rollout.settle import finish
from mtrl_cli.rollout.task_fault import sample_of_group
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.runs.trajectories import References, trajectory_file, write_trajectories
from mtrl_cli.servers.interface import TrainingService
from mtrl_cli.training.commit import commit
from mtrl_cli.training.draining import until_drain
from mtrl_cli.training.evaluation.evaluate import EvaluationPlan, evaluate
from mtrl_cli.training.evaluation.games import (
    Evaluations,
    evaluation_metrics,
    pass_rule,
    step_label,
    unplayable,
)
from mtrl_cli.training.events import Notice, PhaseStarted, StepFinished
from mtrl_cli.training.operations import Operations
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.policies.choose import is_held
from mtrl_cli.training.start import Start
from mtrl_cli.training.step.accumulation import Accumulated, accumulate
from mtrl_cli.training.step.audit import Audit, Committed, Replay
from mtrl_cli.training.step.batch import Batch, KlPenalty, build_batch
from mtrl_cli.training.step.groups import GroupRules, TrainingBatch, training_groups
from mtrl_cli.training.step.metrics import outcome_metrics, rollout_metrics, training_metrics
from mtrl_cli.training.step.reference import recorded_of, reference_logprobs
from mtrl_cli.training.telling.batches import Batches
from mtrl_cli.training.totals import Totals


class Stopwatch:
    """Names the wall time between one lap and the next, and that of parts of a lap."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.laps[name] = time.monotonic() - began


class TrainingLoop:
    """Trains one model on one task; see the module's docstring for a step."""

    def __init__(
        self,
        *,
        plan: TrainingPlan,
        rollout: ClientMultiTurnRollout,
        task: Task,
        service: TrainingService,
        operations: Operations,
        folder: RunFolder,
        observer: Observer,
        stop: StopRequest,
        totals: Totals,
        batches: Batches | None = None,
    ) -> None:
        self._plan = plan
        self._rollout = rollout
        self._task = task
        self._passed = pass_rule(task)
        self._service = service
        self._operations = operations
        self._folder = folder
        self._observer = observer
        self._stop = stop
        self._totals = totals
        self._batches = batches
        self.committed: PolicySnapshot | None = None
        """The policy of the last commit."""
        self._open_groups: set[int] = set()
        """Admitted and not consumed yet."""

    async def run(self, start: Start) -> PolicySnapshot:
        """Train up to ``plan.steps`` steps, or until a drain; returns the last policy.

        Raises:
            MtrlError: a training call failed or has an unknown outcome, or no group of a step
                could be played.
        """
        plan, operations, policy = self._plan, self._operations, start.policy
        audit = Audit(plan.audit, plan.loss, self._service, self._observer, start.committed)
        snapshots = self._service.capabilities.snapshots
        await self._evaluate_lost(start)
        async with self._admitting(), self._driver(start) as driver:
            for step in range(start.step, plan.steps):
                clock = Stopwatch()
                self._observer(PhaseStarted("sampling", step))
                groups = await driver.take()
                if not groups:
                    break
                clock.lap("seconds_sampling")

                kept = training_groups(groups, self._rules(policy))
                self._check_alive(groups, kept)
                if self._batches is not None:
                    self._batches.stepped(step + 1, groups, self._task.tools, kept.outcomes)
                with clock.part("seconds_reference"):
                    penalty = await self._penalty(step, start.initial, kept)
                batch = build_batch(kept, plan.advantage, penalty, plan.weighting)

                figures = rollout_metrics(groups, kept, policy.step) | self._kl_figures(step, batch)
                figures |= outcome_metrics(groups, self._passed)
                if batch.data:
                    self._observer(PhaseStarted("training", step))
                    result, replay = await self._forward_backward(audit, policy, batch)
                    figures |= await audit.check(step + 1, policy, batch, result.logprobs, replay)
                    if snapshots == "live":
                        await driver.quiesce()
                    optimizer = await operations.optim_step(plan.adam(step))
                    if snapshots == "newest_only":
                        await driver.quiesce()
                    policy = await self._publish(policy.step + 1)
                    figures |= training_metrics(batch, result, optimizer)
                if self._stop.draining:
                    driver.close_admission()
                driver.publish(policy)
                state = await self._save_state(step, last=driver.exhausted)
                with clock.part("seconds_files"):
                    references = recorded_of(kept, penalty)
                    digest = await self._write_trajectories(step, groups, references)

                clock.lap("seconds_training")
                figures |= clock.laps
                self._record(step, figures, kept)
                commit(self._folder, step + 1, policy, state, kept.outcomes, digest)
                self.committed = policy
                self._report(step, policy, figures, groups, kept)
                await self._evaluate_during(step, policy)
        return policy

    def _driver(self, start: Start) -> StreamingDriver:
        plan = self._plan
        left = start.groups(plan.steps * plan.groups_per_step)
        driver = StreamingDriver(
            self._rollout,
            self._admit,
            start.policy,
            per_step=plan.groups_per_step,
            lag=plan.max_policy_lag,
            steps=plan.steps - start.step,
            groups=left,
        )
        if self._stop.draining:
            driver.close_admission()
        return driver

    @asynccontextmanager
    async def _admitting(self) -> AsyncIterator[None]:
        """Groups that were admitted and not consumed in the end are recorded as dropped."""
        try:
            yield
        finally:
            for group in sorted(self._open_groups):
                self._record_group(group, "dropped")

    def _admit(self, group: int, policy: PolicySnapshot) -> GroupAdmission:
        task = sample_of_group(self._task, seeds.training_task(self._plan.seed, group), group)
        admission = self._plan.admission(self._folder.id, TRAINING, group, task, policy)
        self._open_groups.add(group)
        self._record_group(
            group,
            "admitted",
            task=admission.task.id,
            policy=policy.uri,
            policy_step=policy.step,
        )
        return admission

    def _record_group(self, group: int, state: str, **facts: object) -> None:
        attempt = self._folder.attempt
        self._folder.groups.append({"group": group, "attempt": attempt, "state": state, **facts})

    def _rules(self, policy: PolicySnapshot) -> GroupRules:
        plan = self._plan
        return GroupRules(
            step=policy.step,
            max_policy_lag=plan.max_policy_lag,
            on_truncated=plan.on_truncated,
            skip=plan.skip,
            least_members=plan.least_members,
        )

    def _check_alive(self, groups: list[Group], kept: TrainingBatch) -> None:
        """A step of which nothing could be played ends the run with the first failure."""
        if not kept.groups and all(group.failed for group in groups):
            raise unplayable(f"all {len(groups)} groups of a step failed", groups)

    async def _penalty(
        self, step: int, initial: PolicySnapshot, kept: TrainingBatch
    ) -> KlPenalty | None:
        coefficient = self._plan.kl(step)
        if coefficient == 0:
            return None
        reference = await reference_logprobs(self._service, initial, kept.trajectories)
        return KlPenalty(coefficient, reference)

    async def _forward_backward(
        self, audit: Audit, policy: PolicySnapshot, batch: Batch
    ) -> tuple[Accumulated, Replay | Committed | None]:
        """Accumulate the batch's gradients, in as many calls as it takes; what the audit has to
        ask the server for is asked meanwhile."""
        plan, reduction = self._plan, self._service.capabilities.loss_reduction
        async with asyncio.TaskGroup() as tasks:
            replay = tasks.create_task(audit.replay(policy, batch))
            result = await accumulate(
                self._operations, batch, plan.loss, reduction, plan.max_tokens_per_call
            )
        return result, replay.result()

    def _kl_figures(self, step: int, batch: Batch) -> dict[str, float]:
        if batch.kl is None:
            return {}
        return {"kl": batch.kl, "kl_coefficient": self._plan.kl(step)}

    async def _publish(self, step: int) -> PolicySnapshot:
        self._observer(PhaseStarted("publishing", step))
        name = snapshot_name(self._folder.id, self._folder.attempt, step)
        return PolicySnapshot(await self._operations.publish(name), step)

    async def _save_state(self, step: int, *, last: bool) -> str | None:
        every, drained = self._plan.checkpoint_every, last and self._stop.draining
        due = every and (last or not (step + 1) % every)
        if not (due or drained):
            return None
        name = snapshot_name(self._folder.id, self._folder.attempt, step + 1)
        return await self._operations.save_state(name)

    async def _write_trajectories(
        self, step: int, groups: list[Group], references: References
    ) -> str | None:
        if not self._plan.save_trajectories:
            return None
        path = trajectory_file(self._folder.path, step + 1)
        # On a thread: sampling goes on meanwhile.
        return await finish(asyncio.to_thread(write_trajectories, path, groups, references))

    def _record(self, step: int, figures: Mapping[str, float], kept: TrainingBatch) -> None:
        """What is told of a step stands before its commit: a commit then never lacks it."""
        for group, outcome in kept.outcomes.items():
            self._record_group(group, outcome)
            self._open_groups.discard(group)
        self._record_metrics(step + 1, figures)

    def _record_metrics(self, step: int, figures: Mapping[str, float]) -> None:
        told = {"step": step, "attempt": self._folder.attempt, "time": round(time.time(), 3)}
        # A figure that is no number, such as a server has not measured, has no place in JSON.
        known = {name: value for name, value in figures.items() if math.isfinite(value)}
        self._folder.metrics.append({**told, **known})

    def _report(
        self,
        step: int,
        policy: PolicySnapshot,
        figures: Mapping[str, float],
        groups: list[Group],
        kept: TrainingBatch,
    ) -> None:
        self._totals.consume(groups, kept.skipped)
        self._totals.steps += 1
        self._observer(StepFinished(step + 1, self._plan.steps, policy.uri, figures))

    async def _evaluate_lost(self, start: Start) -> None:
        """The last evaluation that was due before a resume, where a stop or a kill has kept it
        from being recorded."""
        every = self._plan.evaluate_every
        step = start.step // every * every if every else 0
        if not step or Evaluations(self._folder.path).read(step_label(step)) is not None:
            return
        policy, then = start.policy, start.history.at(step)
        if step < start.step and then is not None:
            lasting = self._service.capabilities.snapshots == "immutable"
            if not (lasting and await is_held(self._service, then.policy)):
                text = f"the evaluation of step {step} was cut off, and its policy is gone"
                self._observer(Notice(text))
                return
            policy = PolicySnapshot(then.policy, then.policy_step)
        await self._evaluate_during(step - 1, policy)

    async def _evaluate_during(self, step: int, policy: PolicySnapshot) -> None:
        every = self._plan.evaluate_every
        if not every or (step + 1) % every or step + 1 == self._plan.steps or self._stop.draining:
            return
        evaluation: EvaluationPlan = self._plan.evaluation_during
        self._observer(PhaseStarted("evaluation", step + 1))
        label = step_label(step + 1)

        def heard(groups: Sequence[Group]) -> None:
            if self._batches is not None:
                self._batches.evaluated(groups, self._task.tools, label)

        games = evaluate(
            self._rollout,
            self._task,
            policy,
            evaluation,
            run=self._folder.id,
            label=label,
            heard=heard,
        )
        played = await until_drain(games, self._stop)
        if played is None:
            return
        result = Evaluations(self._folder.path).record(played, against="before")
        self._record_metrics(step + 1, evaluation_metrics(result))
        self._observer(result)
