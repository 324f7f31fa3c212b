"""The composition root: from an experiment to the parts that play and train it.

This is the one place that knows concrete servers, environments and tasks. `assemble` borrows the
parts one after the other and returns them in the opposite order, whatever happens in between;
the ledger hears of each borrow before it is made.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from mtrl_cli.chat import startup
from mtrl_cli.chat.renderer import RendererChat as RendererChat
from mtrl_cli.chat.tokenizer import load_tokenizer as load_tokenizer
from mtrl_cli.child import ChildServer
from mtrl_cli.config.rules.capabilities import untempered
from mtrl_cli.config.rules.requirements import check_capabilities as check_capabilities
from mtrl_cli.config.schema import EnvConfig, EnvKind, Experiment, ServerConfig
from mtrl_cli.envs import distribution
from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.connect import check_environment as check_environment
from mtrl_cli.envs.connect import environments_for, server_for
from mtrl_cli.envs.e2b.backend import E2BFactory
from mtrl_cli.envs.e2b.dead import DeadSandboxes
from mtrl_cli.envs.e2b.provider import Provider
from mtrl_cli.envs.interface import Watch as Watch
from mtrl_cli.envs.interface import check_adapter
from mtrl_cli.envs.openenv_served import LOG, ServedEnvironments
from mtrl_cli.envs.seeds import seed_notice
from mtrl_cli.envs.tools import offered_tools, takes_tools
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.light_import import light_packages
from mtrl_cli.rollout.borrow import Holding
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.ports import (
    Chat,
    EnvironmentFactory,
    HarnessFactory,
    Task,
    TemplateNotAppendOnly,
)
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.runs.registry import read_run
from mtrl_cli.servers.connect import embedded_for as embedded_for
from mtrl_cli.servers.connect import service_for
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import SnapshotStore, TrainingService
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.tasks.load import load_task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with."""

    service: TrainingService
    chat: Chat
    task: Task
    envs: EnvironmentFactory
    harnesses: HarnessFactory | None
    server: str
    """The server, for people: its kind and its address."""
    watch: Watch
    """What the environments showed beside the episodes, counted."""
    listing: Mapping[str, Any] | None
    """The tools that the environment listed, for a task that takes them."""


async def check_experiment(experiment: Experiment) -> None:
    """Load what can be loaded and reach what can be reached, before anything is created.

    Raises:
        MtrlError: the task, the environment, the tokenizer or the server is not there, or the
            server cannot do what the experiment asks for.
    """
    _, task = reading_parts(experiment)
    await check_environment(experiment, cast(TaskAdapter, task))
    if embedded_for(experiment.server) is None:
        service = service_for(experiment.server)
        await service.check()


@asynccontextmanager
async def assemble(
    experiment: Experiment,
    folder: Path,
    resources: RolloutResources,
    *,
    training: bool,
    tell: Callable[[str], None],
) -> AsyncIterator[Parts]:
    """Borrow the parts of a run, and return them at the end, also under cancellation.

    ``folder`` is where the logs of servers go that are started for the run; ``tell`` hears, in one
    line each, what a person should know and what stops nothing.

    Raises:
        MtrlError: see `check_experiment`.
    """
    watch = Watch(tell)
    chat, task = reading_parts(experiment)
    embedded = embedded_for(experiment.server, log=folder / "server.log")
    async with (
        _lost_with(embedded),
        lent_environments(experiment, task, folder, resources, watch) as envs,
    ):
        listing = await listed_tools(envs, chat, task, resources)
        if experiment.env.check_seeds and (text := await seed_notice(envs, task, resources)):
            watch.saw("seeds_ignored", text)
        async with lent_service(experiment.server, embedded, resources) as service:
            if training:
                check_capabilities(service.capabilities, experiment)
                if not service.capabilities.tempered_logprobs and (
                    warning := untempered(experiment.group.temperature)
                ):
                    tell(warning)
            harnesses, address = harness_factory(task), service.describe()
            yield Parts(service, chat, task, envs, harnesses, address, watch, listing)


@asynccontextmanager
async def lent_environments(
    experiment: Experiment, task: Task, folder: Path, resources: RolloutResources, watch: Watch
) -> AsyncIterator[EnvironmentFactory]:
    """What lends environments to trajectories, for as long as the scope lasts; ``folder`` is the
    run's.

    Raises:
        MtrlError: it is not to be had.
    """
    async with AsyncExitStack() as borrowed:
        started = server_for(experiment, folder / LOG)
        if started is not None:
            await _borrow(borrowed, resources, _process(started, "env_server"))
        envs = environments_for(experiment, cast(TaskAdapter, task), watch, started)
        if isinstance(envs, E2BFactory):
            account = envs.account(folder.name, resources, partial(_is_over, folder.parent))
            await _borrow(borrowed, resources, account)
        else:
            await _borrow(borrowed, resources, _backend(envs))
        yield envs


@asynccontextmanager
async def lent_service(
    server: ServerConfig, embedded: EmbeddedServer | None, resources: RolloutResources
) -> AsyncIterator[TrainingService]:
    """The connected client of a server, for as long as the scope lasts; ``embedded`` is the one
    to start for it.

    Raises:
        MtrlError: the server does not start, cannot be reached, or does not let us in.
    """
    async with AsyncExitStack() as borrowed:
        if embedded is not None:
            borrowed.callback(_gone_with_it, resources)
            await _borrow(borrowed, resources, _process(embedded, "server_process"))
        service = service_for(server, embedded)
        await _borrow(borrowed, resources, _connection(service))
        yield service


def _gone_with_it(resources: RolloutResources) -> None:
    """What the embedded server did not give back has ended with it, where it has ended itself."""
    if "server_process" in resources.counts():
        return
    for borrow in resources.quarantined:
        if borrow.kind == "server_model":
            with suppress(OSError):  # a full disk: `mtrl cancel` will find the same
                resources.change(borrow, Holding.RELEASED)


async def listed_tools(
    envs: EnvironmentFactory, chat: RendererChat, task: Task, resources: RolloutResources
) -> Mapping[str, Any] | None:
    """Give a task that takes its tools from the environment what that lists; None for others.

    Raises:
        MtrlError: it lists none, or they cannot be used.
    """
    if not takes_tools(task):
        return None
    listing = await offered_tools(envs, resources)
    task.take_tools(listing)
    check_append_only(chat, task)
    return listing


async def _borrow(borrowed: AsyncExitStack, resources: RolloutResources, lender: Lender[T]) -> T:
    """In a scope of its own: what is borrowed so is returned one by one, the last one first."""
    scope = await borrowed.enter_async_context(resources.scope("run"))
    return await scope.borrow(lender)


@asynccontextmanager
async def _lost_with(server: EmbeddedServer | None) -> AsyncIterator[None]:
    """A scope that ends with a server: when its process ends by itself, the scope is cancelled, and
    is left with the error that says so, whatever else has failed for want of it."""
    if server is None:
        yield
        return
    inside = asyncio.current_task()
    assert inside is not None
    watch = asyncio.ensure_future(server.watch())
    watch.add_done_callback(lambda done: done.cancelled() or inside.cancel())
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if watch.done():
            inside.uncancel()
        if (says := server.ended()) is None:
            raise
        raise ServerError(says) from error
    finally:
        watch.cancel()


def notices() -> list[str]:
    """What is odd about the installation, one line each."""
    conflict = distribution.warning()
    return [] if conflict is None else [conflict]


def reading_parts(
    experiment: Experiment, listing: Mapping[str, Any] | None = None
) -> tuple[RendererChat, Task]:
    """What an episode is written and read with: chat and task.

    ``listing`` is what the environment listed once, for a task that takes its tools from there.

    Raises:
        MtrlError: one of them is not there, or cannot be used.
    """
    loaded = task_of(experiment)
    if listing is not None and takes_tools(loaded):
        loaded.take_tools(listing)
    chat = chat_of(experiment.server)
    check_append_only(chat, loaded)
    return chat, loaded


def task_of(experiment: Experiment) -> Task:
    """The experiment's task.

    Raises:
        MtrlError: it cannot be loaded, or is none.
    """
    task = experiment.task
    # A task's file may import OpenEnv too, whose packages would import their servers.
    light_packages("openenv", "openenv.core", "openenv.core.env_server")
    loaded = load_task(task.entrypoint, task.name, task.unfinished_reward, dict(task.params))
    check_adapter(loaded)
    return loaded


def chat_of(server: ServerConfig) -> RendererChat:
    """The chat format of a server's model.

    Raises:
        MtrlError: the tokenizer or the renderer cannot be used.
    """
    return RendererChat(load_tokenizer(server.tokenizer), server.renderer)


def running_service(server: ServerConfig) -> TrainingService:
    """The client of a server that runs without us, not connected.

    Raises:
        MtrlError: the configuration names no running server.
    """
    if embedded_for(server) is not None:
        raise MtrlError("server.base_url: missing; the embedded server ended with the run")
    return service_for(server)


def dead_sandboxes(env: EnvConfig) -> DeadSandboxes:
    """What ends the sandboxes of a run that is gone.

    Raises:
        MtrlError: the configuration has none, or the SDK is not there.
    """
    if env.kind is not EnvKind.e2b:
        raise MtrlError("the run's config.yaml does not say how to get at its sandboxes")
    if not env.e2b.api_key:
        raise MtrlError("env.e2b.api_key of the run's config.yaml is empty here")
    provider = Provider(env.e2b.api_key, template=env.e2b.template, timeout=env.open_timeout)
    return DeadSandboxes(provider, settles=env.e2b.settles, seconds=env.close_timeout)


@asynccontextmanager
async def snapshot_store(server: ServerConfig) -> AsyncIterator[SnapshotStore | None]:
    """The snapshots of a server, one that runs or the embedded one, started on its store for as
    long as the scope lasts. None where the server does not hand its snapshots out.

    Raises:
        MtrlError: the store is not there, or the server does not start.
    """
    async with AsyncExitStack() as borrowed:
        embedded = embedded_for(server)
        if embedded is not None:
            if not embedded.store.is_dir():
                raise MtrlError(f"server.store: there is no store in {embedded.store}")
            await borrowed.enter_async_context(embedded)
        service = service_for(server, embedded)
        yield service if isinstance(service, SnapshotStore) else None


def harness_factory(task: Task) -> HarnessFactory | None:
    """The factory of a task that brings harnesses: the task itself, when it lends them."""
    return cast(HarnessFactory, task) if callable(getattr(task, "lender", None)) else None


def _backend(envs: EnvironmentFactory) -> Lender[EnvironmentFactory]:
    async def make(key: str) -> EnvironmentFactory:
        return envs

    return Lender("backend", make, lambda envs: envs.close())


def _is_over(runs: Path, run: str) -> bool:
    """Whether ``run`` is the id of a run in this folder, and its process is gone."""
    if run != Path(run).name or not (runs / run / "run.json").is_file():
        return False
    record = read_run(runs / run)
    return not record.alive and record.status not in ("running", "unreadable")


Child = TypeVar("Child", EmbeddedServer, ServedEnvironments)


def _process(server: Child, kind: str) -> Lender[Child]:
    """A server of the run: a child process, which also ends by itself when this one is gone."""

    async def make(key: str) -> Child:
        return await server.__aenter__()

    async def give_back(server: Child) -> None:
        await asyncio.to_thread(server.stop)

    return Lender(
        kind,
        make,
        give_back,
        external=True,
        place=socket.gethostname(),
        identify=lambda server: server.pid,
        remedy=lambda pid: f"kill {pid}",
        facts=_process_facts,
    )


def _process_facts(server: ChildServer) -> dict[str, Any]:
    known = {} if server.pid is None else process_facts(server.pid)
    return {**known, "url": server.url}


def _connection(service: TrainingService) -> Lender[TrainingService]:
    async def make(key: str) -> TrainingService:
        await service.connect()
        return service

    return Lender(
        "server_session",
        make,
        lambda service: service.close(),
        external=True,
        place=service.describe(),
        identify=lambda service: service.session,
        remedy=lambda session: "the server forgets it when its heartbeats end",
    )


def check_append_only(chat: RendererChat, task: Task) -> None:
    """Raises: UsageError: the template cannot be extended by appending."""
    try:
        startup.check_append_only(chat, task.tools)
    except TemplateNotAppendOnly as error:
        raise UsageError(f"server.renderer: {error}") from error
