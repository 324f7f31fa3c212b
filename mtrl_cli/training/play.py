"""`play`: groups of episodes under one policy, without training.

Groups are admitted as there is room for them, so that a drain finishes what is being played and
begins nothing; what has been played is recorded also when a stop drops the rest.
"""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mtrl_cli.assembly import Parts, check_experiment
from mtrl_cli.config.schema import Experiment
from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.events import Observer
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import Task
from mtrl_cli.rollout.task_fault import sample_of_group
from mtrl_cli.runs.folder import Redact, RunFolder
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.runs.trajectories import write_trajectories
from mtrl_cli.training.draining import until_drain
from mtrl_cli.training.evaluation.games import unplayable
from mtrl_cli.training.events import PhaseStarted, RunFinished
from mtrl_cli.training.frame import Frame, cancelled_before_it_began
from mtrl_cli.training.policies.choose import choose_policy, held_policy


async def play(
    experiment: Experiment,
    config_yaml: str,
    *,
    groups: int,
    observer: Observer,
    stop: StopRequest,
    redact: Redact = str,
) -> RunFinished:
    """Play ``groups`` groups of the experiment's task under ``experiment.policy``, or under the
    base model where it is None, and write their trajectories.

    Raises:
        UsageError: ``experiment.policy`` names no policy of the experiment's server.
        MtrlError: the run failed, or not one group could be played; the text is one line.
    """
    chosen = choose_policy(experiment, experiment.policy)
    await until_drain(check_experiment(experiment), stop)
    if stop.draining:
        return cancelled_before_it_began(stop)
    folder = RunFolder.create(
        Path(experiment.run.dir),
        experiment.name,
        "rollout",
        config_yaml,
        redact,
        plays=[] if chosen is None else [chosen.uri],
    )
    frame = Frame(experiment, folder, observer, stop, trains=False)
    strange = None if chosen is None else chosen.strange_to(experiment)

    async def work(parts: Parts) -> None:
        frame.announce(parts, 0)
        if strange is not None:
            frame.notice(strange)
        policy = await held_policy(parts.service, chosen)
        frame.policy(policy)
        observer(PhaseStarted("sampling"))
        played: list[Group] = []
        try:
            async with frame.rollout(parts) as rollout:
                for admission in _admissions(frame, parts.task, policy, groups):
                    while rollout.in_flight >= _at_once(frame):
                        played += await rollout.collect(1)
                    if stop.draining:
                        break
                    rollout.admit(admission)
                async for group in rollout.groups():
                    played.append(group)
        finally:
            played.sort(key=lambda group: group.admission.group)
            _record(frame, played)
            frame.batches.gathered(played, parts.task.tools)
            frame.batches.ended("the rollout", parts.task.tools)
        if played and all(group.failed for group in played):
            raise unplayable(f"all {len(played)} groups failed", played)

    return await frame.carry_out(work)


def _at_once(frame: Frame) -> int:
    """Groups in flight: twice what fits, so that one slow member does not leave slots empty."""
    return 2 * math.ceil(frame.experiment.run.concurrency / frame.plan.group_size)


def _admissions(
    frame: Frame, task: Task, policy: PolicySnapshot, groups: int
) -> Iterator[GroupAdmission]:
    """Made one by one, as there is room for them."""
    plan = frame.plan
    for group in range(groups):
        sample = sample_of_group(task, seeds.derive("task/rollout", plan.seed, group), group)
        yield plan.admission(frame.folder.id, "rollout", group, sample, policy)


def _record(frame: Frame, played: list[Group]) -> None:
    digest = write_trajectories(frame.folder.path / "trajectories" / "rollout.jsonl.gz", played)
    frame.folder.update(trajectories=digest)
    for group in played:
        frame.folder.groups.append(
            {
                "group": group.admission.group,
                "state": group.failed or "complete",
                "task": group.admission.task.id,
                "policy": group.admission.policy,
            }
        )
    failed = Counter(group.failed for group in played if group.failed)
    frame.outcome.totals.consume(played, failed)
