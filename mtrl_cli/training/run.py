"""`train` and `resume`: one attempt of a training run, evaluated before and after."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from mtrl_cli.assembly import Parts, check_experiment, embedded_for
from mtrl_cli.config.schema import Experiment
from mtrl_cli.rollout.events import Observer
from mtrl_cli.rollout.settle import finish
from mtrl_cli.runs.commits import History, published
from mtrl_cli.runs.files import DamagedFile, read_records
from mtrl_cli.runs.folder import Redact, RunFolder
from mtrl_cli.runs.places import store_of
from mtrl_cli.runs.reap import Reaped
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.runs.takeover import NewConfig, take_over
from mtrl_cli.training.draining import until_drain
from mtrl_cli.training.evaluation.games import Evaluations
from mtrl_cli.training.events import RunFinished
from mtrl_cli.training.frame import Frame, cancelled_before_it_began
from mtrl_cli.training.loop import TrainingLoop
from mtrl_cli.training.operations import Operations
from mtrl_cli.training.settling.reaping import settle
from mtrl_cli.training.start import Start, begin
from mtrl_cli.training.totals import Totals


async def train(
    experiment: Experiment,
    config_yaml: str,
    *,
    observer: Observer,
    stop: StopRequest,
    redact: Redact = str,
) -> RunFinished:
    """Train the experiment's policy, as the first attempt of a new run.

    ``config_yaml`` is the composed experiment with secrets masked, for the run's folder;
    ``redact`` keeps secrets out of what else is written there.

    Raises:
        MtrlError: the run failed; the text is one line.
    """
    await until_drain(check_experiment(experiment), stop)
    if stop.draining:
        return cancelled_before_it_began(stop)
    parent = Path(experiment.run.dir)
    folder = RunFolder.create(parent, experiment.name, "train", config_yaml, redact)
    return await _attempt(Frame(experiment, folder, observer, stop, trains=True), History())


async def resume(
    run: Path,
    experiment: Experiment,
    config: NewConfig | None = None,
    *,
    at: int | None = None,
    observer: Observer,
    stop: StopRequest,
    redact: Redact = str,
) -> RunFinished:
    """Go on with the run in the folder ``run``, as its next attempt.

    ``experiment`` is what the run was started with, or what it may be changed to; ``config`` is
    that change, None where there is none. ``at`` is the step to begin at; None is the last one
    that has a training state.

    Raises:
        StillRunning: the run lives, or somebody else has resumed it meanwhile.
        MtrlError: the run failed; the text is one line.
    """
    Evaluations(run).read("before")  # damage to it would end the run when all is trained
    await until_drain(check_experiment(experiment), stop)
    if stop.draining:
        return cancelled_before_it_began(stop)

    def take() -> tuple[RunFolder, History, Reaped | None]:
        taken = take_over(run, settle, config=config, at=at, redact=redact)
        return taken.folder, taken.history, taken.reaped

    folder, history, reaped = await finish(asyncio.to_thread(take))
    frame = Frame(experiment, folder, observer, stop, trains=True)
    frame.outcome.totals = _totals(history, run / "metrics.jsonl", frame.notice)
    frame.behind = history.last.step if history.last else 0
    for left in reaped.left if reaped else ():
        frame.notice(f"an earlier attempt left {left}")
    return await _attempt(frame, history)


def _totals(history: History, metrics: Path, tell: Callable[[str], None]) -> Totals:
    """What is behind the attempt. Nothing rests on the metrics, so damage to them is only told."""
    try:
        return Totals.of(history, read_records(metrics))
    except (DamagedFile, ValueError, TypeError, AttributeError) as error:
        what = error.what if isinstance(error, DamagedFile) else error
        told = "episodes and tokens of earlier attempts are not counted in the summary"
        tell(f"{metrics} is damaged: {what}; {told}")
        return Totals.of(history, ())


async def _attempt(frame: Frame, history: History) -> RunFinished:
    """Carry out what ``history`` leaves to be done."""
    folder = frame.folder

    async def work(parts: Parts) -> None:
        frame.announce(parts, frame.plan.steps, history.last.step if history.last else 0)
        operations = Operations(
            parts.service,
            folder.ledger,
            folder.attempt,
            parts.chat.vocabulary,
            taken=published(folder.path / "commits.jsonl"),
            tell=frame.notice,
        )
        async with frame.resources.scope("run") as scope:
            await scope.borrow(operations.server_model(frame.plan.model))
            server = frame.experiment.server
            store = None if embedded_for(server) is None else store_of(server.store)
            start = await begin(folder, operations, history, store=store)
            await _train(frame, parts, operations, start)

    return await frame.carry_out(work)


async def _train(frame: Frame, parts: Parts, operations: Operations, start: Start) -> None:
    plan, outcome, rollout = frame.plan, frame.outcome, frame.rollout(parts)
    frame.policy(start.policy)
    outcome.before = frame.evaluated("before")
    if outcome.before is None and _still_there(start, parts):
        first = start.initial
        outcome.before = await frame.evaluate(parts, rollout, first, plan.evaluation, "before")

    loop = TrainingLoop(
        plan=plan,
        rollout=rollout,
        task=parts.task,
        service=parts.service,
        operations=operations,
        folder=frame.folder,
        observer=frame.observer,
        stop=frame.stop,
        totals=outcome.totals,
        batches=frame.batches,
    )
    try:
        final = await loop.run(start)
    finally:
        # Also what a stop or a failure leaves: the run has reached its last commit.
        outcome.policy = (loop.committed or start.policy).uri
    frame.policy(final)
    if not frame.stop.draining:
        rollout = frame.rollout(parts)  # the loop has settled the one it trained with
        outcome.after = await frame.evaluate(parts, rollout, final, plan.evaluation, "after")


def _still_there(start: Start, parts: Parts) -> bool:
    """Whether the policy of step 0 can still be sampled."""
    immutable = parts.service.capabilities.snapshots == "immutable"
    return immutable or start.policy == start.initial
