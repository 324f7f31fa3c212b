"""The examination: every check in its order, over parts that are borrowed and given back.

::

    python  packages  configuration  secrets  folders  task  tokenizer  template
    environment (made, begun, stepped)  server  capabilities  sample  stop  logprobs  parity
    returned  runs  sandboxes

What lives outside this process is recorded as any run records it, in a run folder of the kind
``doctor``: one that was killed is a lost run, which `mtrl cancel` settles. A folder of which
everything was returned is removed again, and ``latest`` never points at one.
"""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from mtrl_cli.assembly import (
    RendererChat,
    Watch,
    chat_of,
    check_append_only,
    check_capabilities,
    check_environment,
    embedded_for,
    lent_environments,
    lent_service,
    listed_tools,
    task_of,
)
from mtrl_cli.config.compose import Composed
from mtrl_cli.config.resolve import resolve
from mtrl_cli.config.schema import Experiment
from mtrl_cli.config.secrets import SecretKey
from mtrl_cli.config.validate import validate
from mtrl_cli.doctor import leftovers, machine, probe, world
from mtrl_cli.doctor.report import Report, Speaker, Told
from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import EnvironmentFactory, Message, Task
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.runs.control import RunControl
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.stop import Stage, StopRequest
from mtrl_cli.servers.interface import TrainingService
from mtrl_cli.training.plan import TrainingPlan
from mtrl_cli.training.policies import ChosenPolicy, choose_policy, held_policy

_QUICK = 60.0
"""Seconds for a check that contacts nothing; importing a task may be slow."""
_START = 40.0
"""Seconds for a server of ours to start."""
_ABSENT = "unset"
"""Stands for a secret that is not set, which nothing that needs it is given."""
_HELLO = [{"role": "user", "content": "Say hello."}]


@dataclass(slots=True)
class Examination:
    """One run of the doctor.

    Args:
        stop: what asks it to end; it then returns what it holds.
        trains: also create a model and compare the trainer with the sampler.
    """

    composed: Composed
    report: Report
    stop: StopRequest
    trains: bool = True
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found beside the findings."""
    experiment: Experiment | None = None
    task: Task | None = None
    chat: RendererChat | None = None
    envs: EnvironmentFactory | None = None
    opening: Sequence[Message] | None = None
    service: TrainingService | None = None
    turn: probe.Turn | None = None
    folder: RunFolder | None = None
    chosen: ChosenPolicy | None = None

    async def carry_out(self) -> None:
        """Check everything; what is found is in the report.

        Raises:
            asyncio.CancelledError: the stop came.
        """
        await self._here()
        experiment = self.experiment
        if experiment is None:
            return
        runs = Path(experiment.run.dir)
        if self.report.bad("folders") is None:
            await self._with_folder(experiment, runs)
        else:
            self.report.skip("environment", "folders failed: what is borrowed cannot be recorded")
            self.report.skip("server", "folders failed: what is borrowed cannot be recorded")
        own = None if self.folder is None else self.folder.id
        await self._check("runs", lambda s: leftovers.dead_runs(s, runs, own))
        seconds = experiment.env.open_timeout + 5
        await self.report.check(
            "sandboxes",
            lambda s: leftovers.orphans(s, experiment, runs, own),
            seconds=seconds,
            needs=("env secrets",),
        )

    # --- without contacting anything --------------------------------------------------------------

    async def _here(self) -> None:
        await self._check("python", machine.python)
        await self._check("configuration", self._configured)
        await self._check("packages", lambda s: machine.packages(s, self.experiment))
        if (experiment := self.experiment) is None:
            return
        await self._check("folders", lambda s: machine.folders(s, experiment))
        await self._check("task", self._loaded, "configuration")
        await self._check("tokenizer", self._tokens, "configuration")
        await self._check("template", self._appends, "task", "tokenizer")

    async def _check(self, topic: str, work: Any, *needs: str, seconds: float = _QUICK) -> None:
        await self.report.check(topic, work, seconds=seconds, needs=needs)

    async def _configured(self, speaker: Speaker) -> None:
        composed, lacking = self.composed, []
        for secret in composed.secrets:
            if secret.required and not secret.present:
                lacking.append(secret)
            speaker_of = Speaker(self.report, _topic(secret))
            _tell_secret(speaker_of, secret)
        experiment = _resolved(composed, [secret.key for secret in lacking])
        trains = experiment.policy is None
        problems = validate(experiment, training=trains)
        for problem in problems:
            key = problem.partition(" ")[0]
            speaker.fail(problem, f"it was set by {composed.origin(key)}")
        if problems:
            return
        if experiment.policy is not None:
            self.chosen = choose_policy(experiment, experiment.policy)
            assert self.chosen is not None
            speaker.ok(f"policy {experiment.policy} is {self.chosen.uri}")
        self.experiment = experiment
        speaker.ok(f"{experiment.name} composes and is valid ({composed.file})")

    async def _loaded(self, speaker: Speaker) -> None:
        assert self.experiment is not None
        self.task = await asyncio.to_thread(task_of, self.experiment)
        speaker.ok(f"{self.experiment.task.entrypoint} loads")

    async def _tokens(self, speaker: Speaker) -> None:
        assert self.experiment is not None
        server = self.experiment.server
        self.chat = await asyncio.to_thread(chat_of, server)
        speaker.ok(
            f"{server.tokenizer} has {len(self.chat.tokenizer):,} ids; renderer {server.renderer}"
        )

    async def _appends(self, speaker: Speaker) -> None:
        assert self.chat is not None
        assert self.task is not None
        if getattr(self.task, "tools_offered", False):
            speaker.ok("its tools come from the environment, and are tried there")
            return
        await asyncio.to_thread(check_append_only, self.chat, self.task)
        shown = ", ".join(
            f"{token} {self.chat.tokenizer.decode(token)!r}" for token in self.chat.stop_ids
        )
        speaker.ok(f"a turn is extended by appending; stop ids: {shown}")

    # --- with what is borrowed --------------------------------------------------------------------

    async def _with_folder(self, experiment: Experiment, runs: Path) -> None:
        existed = _is_there(runs)
        folder = self.folder = RunFolder.create(
            runs, experiment.name, "doctor", self.composed.yaml, self.composed.redact, latest=False
        )
        resources = RolloutResources(folder.ledger, prefix="a1/")
        folder.count_borrows(lambda: _borrows(resources))
        stop = self.stop
        control = RunControl(folder.path, 1, lambda ask: stop.request(Stage.DRAIN, "mtrl cancel"))
        control.start()
        status, reason = "cancelled", ""
        try:
            await self._borrowing(experiment, folder, resources)
            status = "finished"
        except Exception as error:
            status, reason = "failed", str(error) or type(error).__name__
            raise
        finally:
            left = await resources.close()
            folder.end(status, stop.reason if status == "cancelled" else reason or None)
            control.close()
            if left:
                for borrow in left:
                    Speaker(self.report, "returned").fail(
                        borrow.describe(), f"mtrl cancel {folder.id}, or as said"
                    )
            else:
                Speaker(self.report, "returned").ok("everything that was borrowed was given back")
                _remove(folder.path, runs, existed)

    async def _borrowing(
        self, experiment: Experiment, folder: RunFolder, resources: RolloutResources
    ) -> None:
        env, server = experiment.env, experiment.server
        async with AsyncExitStack() as held:

            async def make(speaker: Speaker) -> None:
                assert self.task is not None
                await check_environment(experiment, cast(Any, self.task))
                watch = Watch(lambda text: speaker.warn(text))
                scope = lent_environments(experiment, self.task, folder.path, resources, watch)
                self.envs = await held.enter_async_context(scope)
                assert self.chat is not None
                await listed_tools(self.envs, self.chat, self.task, resources)
                source = env.base_url or env.app or env.entrypoint
                speaker.ok(f"{env.kind.value}: {source} is there")

            async def play(speaker: Speaker) -> None:
                assert self.envs is not None
                assert self.task is not None
                self.opening = await world.played(speaker, self.envs, self.task, resources)

            opened = env.open_timeout + _START
            await self.report.check(
                "environment",
                make,
                seconds=opened,
                needs=("env secrets", "task", "template"),
            )
            played = 2 * (env.open_timeout + env.reset_timeout + env.close_timeout)
            await self.report.check(
                "episode", play, seconds=played + env.step_timeout, needs=("environment",)
            )

            async def reach(speaker: Speaker) -> None:
                embedded = embedded_for(server, log=folder.path / "server.log")
                scope = lent_service(server, embedded, resources)
                self.service = await held.enter_async_context(scope)
                speaker.ok(
                    f"{self.service.describe()} answers, lets us in, serves {server.base_model}"
                )

            await self.report.check(
                "server", reach, seconds=_QUICK + _START, needs=("server secrets",)
            )
            await self._asked(experiment, folder, resources)

    async def _asked(
        self, experiment: Experiment, folder: RunFolder, resources: RolloutResources
    ) -> None:
        server, report = experiment.server, self.report
        prompt: list[int] = []

        async def can(speaker: Speaker) -> None:
            assert self.service is not None
            self.facts["capabilities"] = probe.told_capabilities(
                speaker, experiment, self.service.capabilities
            )
            if experiment.policy is None:
                check_capabilities(self.service.capabilities, experiment)

        async def sample(speaker: Speaker) -> None:
            assert self.service is not None
            assert self.chat is not None
            tools = () if self.task is None else self.task.tools
            prompt.extend(self.chat.prompt(self.opening or _HELLO, tools))
            room = server.context - len(prompt)
            if room < 1:
                raise Told(
                    f"the opening takes {len(prompt):,} of {server.context:,} tokens",
                    "raise server.context, or shorten the task's words",
                )
            policy = (await held_policy(self.service, self.chosen)).uri
            self.turn = await probe.sampled(
                speaker, self.service, experiment, policy, prompt, self.chat
            )

        async def stop(speaker: Speaker) -> None:
            assert self.service is not None
            assert self.chat is not None
            assert self.turn is not None
            await probe.stopped(speaker, self.service, self.turn, self.chat, prompt)

        async def again(speaker: Speaker) -> None:
            assert self.service is not None
            assert self.chat is not None
            assert self.turn is not None
            limits = TrainingPlan(experiment).audit.limits
            limit, ends = limits.warn_mean or limits.limit, self.chat.stop_ids
            await probe.scored_again(speaker, self.service, self.turn, ends, limit)

        async def compare(speaker: Speaker) -> None:
            assert self.service is not None
            assert self.chat is not None
            assert self.turn is not None
            async with resources.scope("doctor") as scope:
                ids, ledger = self.chat.vocabulary, folder.ledger
                await probe.parity(speaker, self.service, experiment, self.turn, ids, ledger, scope)

        await report.check("capabilities", can, seconds=_QUICK, needs=("server",))
        one = server.sample_timeout + 10
        await report.check("sample", sample, seconds=4 * one, needs=("server", "tokenizer"))
        await report.check("stop ids", stop, seconds=2 * one, needs=("sample",))
        await report.check("logprobs", again, seconds=one, needs=("sample",))
        if not self.trains or self.chosen is not None:
            why = "--no-training" if self.chosen is None else "a fresh model is the base model"
            report.skip("parity", why)
            return
        await report.check(
            "parity", compare, seconds=4 * server.training_timeout, needs=("sample", "capabilities")
        )


def _resolved(composed: Composed, lacking: Sequence[str]) -> Experiment:
    """The experiment; what lacks has a value that is good for nothing.

    Raises:
        MtrlError: the configuration cannot be resolved.
    """
    if not lacking:
        return resolve(composed)
    config = composed.config.copy()
    for key in lacking:
        OmegaConf.update(config, key, _ABSENT)
    return resolve(replace(composed, config=config))


def _topic(secret: SecretKey) -> str:
    section = secret.key.partition(".")[0]
    return f"{section} secrets" if section in ("server", "env") else "secrets"


def _tell_secret(speaker: Speaker, secret: SecretKey) -> None:
    if secret.variable is None:
        speaker.warn(
            f"{secret.key} is a literal in the configuration",
            f"write '{secret.key}=${{oc.env:NAME}}', and export NAME",
        )
    elif secret.present:
        speaker.ok(f"{secret.key}: {secret.variable} is set")
    elif secret.required:
        speaker.fail(f"{secret.key}: {secret.variable} is not set", f"export {secret.variable}=…")
    else:
        speaker.ok(f"{secret.key}: {secret.variable} is not set, and need not be")


def _borrows(resources: RolloutResources) -> dict[str, Any]:
    quarantined = resources.quarantined
    return {
        "held": len(resources.live) - len(quarantined),
        "quarantined": [borrow.describe() for borrow in quarantined],
    }


def _is_there(folder: Path) -> bool:
    return folder.is_dir()


def _remove(path: Path, runs: Path, existed: bool) -> None:
    """What the doctor made; a folder of runs that others came to use meanwhile stays."""
    shutil.rmtree(path, ignore_errors=True)
    if not existed:
        with suppress(OSError):
            runs.rmdir()


async def examine(examination: Examination) -> None:
    """Carry it out, until a stop is asked for.

    Raises:
        asyncio.CancelledError: it was; everything is returned.
    """
    work = asyncio.ensure_future(examination.carry_out())
    stopped = asyncio.ensure_future(examination.stop.reached(Stage.DRAIN))
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    if work.cancelled():
        raise asyncio.CancelledError
    if (error := work.exception()) is not None:
        raise error


def unusable(report: Report, error: MtrlError) -> None:
    """A configuration that does not compose: nothing else can be checked."""
    hint, at = getattr(error, "hint", None), getattr(error, "at", None)
    says = " ".join(str(error).split()) + (f" (at {at})" if at else "")
    Speaker(report, "configuration").fail(says, hint)
