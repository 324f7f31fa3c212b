"""What is borrowed to be tried: the environment, and the server with a model on it.

All of it is recorded as a run records it, in ``folder`` and its ledger, and given back by whoever
made ``resources``.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

from mtrl_cli.assembly import (
    Watch,
    check_capabilities,
    check_environment,
    embedded_for,
    harness_factory,
    lent_environments,
    lent_service,
    listed_tools,
)
from mtrl_cli.doctor import probe, world
from mtrl_cli.doctor.here import Here, secrets_of
from mtrl_cli.doctor.report import QUICK, Report, Speaker, Told
from mtrl_cli.rollout.ports import EnvironmentFactory, Message
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.servers.interface import TrainingService
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.policies.choose import held_policy
from mtrl_cli.training.telling.batches import embedded

_START = 40.0
"""Seconds for a server of ours to start."""
_HELLO: Sequence[Message] = ({"role": "user", "content": "Say hello."},)


@dataclass(frozen=True, slots=True)
class Lent:
    """Tries what is borrowed, until ``held`` is left."""

    here: Here
    report: Report
    folder: RunFolder
    resources: RolloutResources
    held: AsyncExitStack
    trains: bool
    """Also create a model, and compare the trainer with the sampler."""

    async def try_all(self) -> None:
        env, server = self.here.experiment.env, self.here.experiment.server
        check, task = self.report.check, self.here.task
        envs = await check(
            "environment",
            self._environments,
            seconds=env.open_timeout + _START,
            needs=(secrets_of("env"), task, self.here.template),
        )
        began = env.open_timeout + env.reset_timeout + env.close_timeout
        opening = await check(
            "episode",
            lambda s: world.played(s, envs.value, task.value, self.resources),
            seconds=2 * began + env.step_timeout,
            needs=(envs,),
        )
        service = await check(
            "server", self._service, seconds=QUICK + _START, needs=(secrets_of("server"),)
        )
        capable = await check(
            "capabilities", lambda s: self._can(s, service.value), needs=(service,)
        )
        one = server.sample_timeout + 10
        turn = await check(
            "sample",
            lambda s: self._sampled(s, service.value, opening.otherwise(_HELLO)),
            seconds=8 * one,
            needs=(service, self.here.chat),
        )
        await check(
            "stop ids",
            lambda s: probe.stopped(s, service.value, turn.value, self.here.chat.value),
            seconds=2 * one,
            needs=(turn,),
        )
        await check(
            "logprobs",
            lambda s: self._scored(s, service.value, turn.value),
            seconds=one,
            needs=(turn,),
        )
        if self.trains and self.here.chosen is None:
            await check(
                "parity",
                lambda s: self._compared(s, service.value, turn.value),
                seconds=4 * server.training_timeout,
                needs=(turn, capable),
            )
        else:
            why = "a fresh model is the base model" if self.here.chosen else "--no-training"
            self.report.skip("parity", why)

    async def _environments(self, speaker: Speaker) -> EnvironmentFactory:
        experiment, task = self.here.experiment, self.here.task.value
        await check_environment(experiment, cast(Any, task))
        watch = Watch(lambda text: speaker.warn(text))
        scope = lent_environments(experiment, task, self.folder.path, self.resources, watch)
        envs = await self.held.enter_async_context(scope)
        await listed_tools(envs, self.here.chat.value, task, self.resources)
        env = experiment.env
        speaker.ok(f"{env.kind.value}: {env.base_url or env.app or env.entrypoint} is there")
        return envs

    async def _service(self, speaker: Speaker) -> TrainingService:
        server = self.here.experiment.server
        ours = embedded_for(server, log=self.folder.path / "server.log")
        scope = lent_service(server, ours, self.resources)
        service = await self.held.enter_async_context(scope)
        speaker.ok(f"{service.describe()} answers, lets us in, serves {server.base_model}")
        return service

    async def _can(self, speaker: Speaker, service: TrainingService) -> None:
        experiment, said = self.here.experiment, service.capabilities
        self.report.facts["capabilities"] = probe.told_capabilities(speaker, experiment, said)
        if experiment.policy is None:
            check_capabilities(said, experiment)

    async def _sampled(
        self, speaker: Speaker, service: TrainingService, opening: Sequence[Message]
    ) -> probe.Turn:
        experiment, chat, task = self.here.experiment, self.here.chat.value, self.here.task
        prompt = chat.prompt(opening, task.value.tools if task.values else ())
        context = experiment.server.context
        if len(prompt) >= context:
            raise Told(
                f"the opening takes {len(prompt):,} of {context:,} tokens",
                "raise server.context, or shorten the task's words",
            )
        policy = (await held_policy(service, self.here.chosen)).uri
        turn = await probe.sampled(speaker, service, experiment, policy, prompt, chat)
        asked = task.values and task.value.tools and harness_factory(task.value) is None
        if asked and opening is not _HELLO and embedded(experiment.server):
            await probe.played(speaker, service, experiment, turn, chat, task.value.tools)
        return turn

    async def _scored(self, speaker: Speaker, service: TrainingService, turn: probe.Turn) -> None:
        limits = TrainingPlan(self.here.experiment).audit.limits
        limit, ends = limits.warn_mean or limits.limit, self.here.chat.value.stop_ids
        await probe.scored_again(speaker, service, turn, ends, limit)

    async def _compared(self, speaker: Speaker, service: TrainingService, turn: probe.Turn) -> None:
        ids, ledger = self.here.chat.value.vocabulary, self.folder.ledger
        async with self.resources.scope("doctor") as scope:
            await probe.parity(speaker, service, self.here.experiment, turn, ids, ledger, scope)
