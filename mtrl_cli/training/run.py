"""`train`: one training run, evaluated before and after."""

from mtrl_cli.assembly import Parts, check_experiment
from mtrl_cli.config.schema import Experiment
from mtrl_cli.rollout.events import Observer
from mtrl_cli.rollout.policy import PolicySnapshot, snapshot_name
from mtrl_cli.runs.folder import Redact
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.training.draining import until_drain
from mtrl_cli.training.events import RunFinished
from mtrl_cli.training.frame import Frame, cancelled_before_it_began
from mtrl_cli.training.loop import TrainingLoop
from mtrl_cli.training.operations import Operations


async def train(
    experiment: Experiment,
    config_yaml: str,
    *,
    observer: Observer,
    stop: StopRequest,
    redact: Redact = str,
) -> RunFinished:
    """Train the experiment's policy.

    ``config_yaml`` is the composed experiment with secrets masked, for the run's folder;
    ``redact`` keeps secrets out of what else is written there.

    Raises:
        MtrlError: the run failed; the text is one line.
    """
    await until_drain(check_experiment(experiment), stop)
    if stop.draining:
        return cancelled_before_it_began()
    frame = Frame(experiment, "train", config_yaml, observer, stop, redact)

    async def work(parts: Parts) -> None:
        frame.announce(parts, frame.plan.steps)
        folder = frame.folder
        operations = Operations(parts.service, folder.ledger, folder.attempt, parts.vocab)
        async with frame.resources.scope(f"a{folder.attempt}") as scope:
            await scope.borrow(operations.server_model(frame.plan.model))
            await _train(frame, parts, operations)

    return await frame.carry_out(work)


async def _train(frame: Frame, parts: Parts, operations: Operations) -> None:
    plan, outcome, rollout = frame.plan, frame.outcome, frame.rollout(parts)
    name = snapshot_name(frame.folder.id, frame.folder.attempt, 0)
    initial = PolicySnapshot(await operations.publish(name), 0)
    frame.policy(initial)
    outcome.before = await frame.evaluate(parts, rollout, initial, plan.evaluation, "before")

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
    )
    try:
        final = await loop.run(initial)
    finally:
        # Also what a stop or a failure leaves: the run has reached its last commit.
        outcome.policy = (loop.committed or initial).uri
    frame.policy(final)
    if not frame.stop.draining:
        rollout = frame.rollout(parts)  # the loop has settled the one it trained with
        outcome.after = await frame.evaluate(parts, rollout, final, plan.evaluation, "after")
