"""`evaluate_policy`: what ``mtrl eval`` does: the games of one policy, or of two on the same games.

Games are admitted as there is room for them, both policies of a game one after the other, so that
a drain finishes what is being played and leaves whole pairs. What has been played is recorded
also when a stop drops the rest.
"""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

from mtrl_cli.assembly import Parts, check_experiment
from mtrl_cli.config.schema import Experiment
from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.events import Observer
from mtrl_cli.rollout.group import Group
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.settle import finish
from mtrl_cli.runs.folder import Redact, RunFolder
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.runs.trajectories import write_trajectories
from mtrl_cli.training.draining import until_drain
from mtrl_cli.training.evaluation.contest import Contest
from mtrl_cli.training.evaluation.evaluate import game_admissions
from mtrl_cli.training.evaluation.games import Evaluations, Game, game_of, pass_rule, unplayable
from mtrl_cli.training.events import PhaseStarted, RunFinished
from mtrl_cli.training.frame import Frame, cancelled_before_it_began
from mtrl_cli.training.policies.choose import held_policy

LABEL, RIVAL = "eval", "rival"

_PER_FILE = 256
"""Trajectories of one file."""


async def evaluate_policy(
    experiment: Experiment,
    config_yaml: str,
    *,
    contest: Contest,
    observer: Observer,
    stop: StopRequest,
    redact: Redact = str,
) -> RunFinished:
    """Play ``eval.games`` games under the contest's policies, and compare them.

    Raises:
        MtrlError: the run failed, or not one game could be played; the text is one line.
    """
    await until_drain(check_experiment(experiment), stop)
    if stop.draining:
        return cancelled_before_it_began(stop)
    folder = RunFolder.create(
        Path(experiment.run.dir),
        experiment.name,
        "eval",
        config_yaml,
        redact,
        plays=[one.uri for one in (contest.policy, contest.rival) if one is not None],
    )
    frame = Frame(experiment, folder, observer, stop, trains=False)

    async def work(parts: Parts) -> None:
        frame.announce(parts, 0)
        for text in contest.notices(experiment):
            frame.notice(text)
        policies = {LABEL: await held_policy(parts.service, contest.policy)}
        if contest.compares:
            policies[RIVAL] = await held_policy(parts.service, contest.rival)
        frame.policy(policies[LABEL])
        await _Evaluating(frame, parts, policies).play()

    return await frame.carry_out(work)


class _Evaluating:
    """The games of one run."""

    def __init__(self, frame: Frame, parts: Parts, policies: Mapping[str, PolicySnapshot]) -> None:
        self._frame = frame
        self._parts = parts
        self._policies = policies
        self._labels = {policy.uri: label for label, policy in policies.items()}
        self._plan = frame.plan.evaluation
        self._passed = pass_rule(parts.task)
        self._games: dict[str, list[Game]] = {label: [] for label in policies}
        self._unwritten: list[Group] = []
        self._files = 0
        self._failed: list[Group] = []

    async def play(self) -> None:
        frame = self._frame
        frame.observer(PhaseStarted("evaluation"))
        at_once = 2 * frame.experiment.run.concurrency
        try:
            async with frame.rollout(self._parts) as rollout:
                for admission in self._admissions():
                    while rollout.in_flight >= at_once:
                        await self._take(await rollout.collect(1))
                    if frame.stop.draining:
                        break
                    rollout.admit(admission)
                async for group in rollout.groups():
                    await self._take([group])
        finally:
            self._record()
        if self._failed and not frame.outcome.totals.episodes:
            what = f"not one of {len(self._failed)} games could be played"
            raise unplayable(what, self._failed)

    def _admissions(self) -> Iterator[GroupAdmission]:
        """Game by game, under each policy."""
        each = [
            game_admissions(self._parts.task, policy, self._plan, self._frame.folder.id)
            for policy in self._policies.values()
        ]
        for pair in zip(*each, strict=True):
            yield from pair

    async def _take(self, groups: list[Group]) -> None:
        for group in groups:
            self._games[self._labels[group.admission.policy]].append(game_of(group, self._passed))
            self._frame.outcome.totals.consume([group], {})
            self._frame.batches.gathered([group], self._parts.task.tools)
            if group.failed is not None:
                self._failed.append(group)
        self._unwritten += groups
        if len(self._unwritten) >= _PER_FILE:
            # On a thread: the games go on meanwhile.
            await finish(asyncio.to_thread(self._write))

    def _write(self) -> None:
        groups, self._unwritten = self._unwritten, []
        if groups and self._frame.plan.save_trajectories:
            self._files += 1
            folder: Path = self._frame.folder.path / "trajectories"
            write_trajectories(folder / f"eval-{self._files:04d}.jsonl.gz", groups)

    def _record(self) -> None:
        """The rival first, as the policy is compared with it."""
        self._write()
        self._frame.batches.ended("the evaluation", self._parts.task.tools)
        book = Evaluations(self._frame.folder.path)
        for label in (RIVAL, LABEL):
            games = self._games.get(label, [])
            if any(game.reward is not None for game in games):
                played = self._plan.played(label, self._policies[label].uri, games)
                result = book.record(played, against=RIVAL if label == LABEL else None)
                self._frame.tell_evaluation(result)
                if label == LABEL:
                    self._frame.outcome.evaluated = result
                else:
                    self._frame.outcome.before = result
