"""The composition root: from an experiment to the parts that play and train it.

This is the one place that knows concrete servers, environments and tasks. `assemble` borrows the
parts one after the other and returns them in the opposite order, whatever happens in between;
the ledger hears of each borrow before it is made.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import cast

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.config.schema import Experiment
from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import Chat, EnvironmentFactory, Task
from mtrl_cli.rollout.settle import finish
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.ledger import Ledger
from mtrl_cli.servers.connect import embedded_for, service_for
from mtrl_cli.servers.interface import Capabilities, TrainingService
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.tasks.load import load_task


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with."""

    service: TrainingService
    chat: Chat
    task: Task
    envs: EnvironmentFactory
    vocab: int
    """Size of the tokenizer's vocabulary."""
    server: str
    """The server, for people: its kind and its address."""


async def check_experiment(experiment: Experiment) -> None:
    """Load what can be loaded and reach what can be reached, before anything is created.

    Raises:
        MtrlError: the task, the environment, the tokenizer or the server is not there, or the
            server cannot do what the experiment asks for.
    """
    _play_parts(experiment)
    if embedded_for(experiment.server) is None:
        service = service_for(experiment.server)
        await service.check()


@asynccontextmanager
async def assemble(
    experiment: Experiment, folder: RunFolder, *, training: bool
) -> AsyncIterator[Parts]:
    """Borrow the parts of a run, and return them at the end, also under cancellation.

    Raises:
        MtrlError: see `check_experiment`.
    """
    async with AsyncExitStack() as borrowed:
        chat, task, envs, vocab = _play_parts(experiment)
        borrowed.push_async_callback(finish_with, envs.close)

        embedded = embedded_for(experiment.server, log=folder.path / "server.log")
        if embedded is not None:
            await borrowed.enter_async_context(_running(embedded, folder.ledger))
        service = service_for(experiment.server, embedded)
        await service.connect()
        borrowed.push_async_callback(finish_with, service.close)
        if training:
            check_capabilities(service.capabilities, experiment)
        yield Parts(service, chat, task, envs, vocab, service.describe())


def check_capabilities(capabilities: Capabilities, experiment: Experiment) -> None:
    """Refuse what the server cannot do, before any of it is needed.

    Raises:
        UsageError: naming the setting, and what to write instead.
    """
    train, server = experiment.train, experiment.server
    if train.lora_rank is None and not capabilities.full_training:
        raise UsageError(
            "train.lora_rank: null trains all weights, which this server cannot; write a rank"
        )
    if train.kl and not capabilities.policy_logprobs:
        raise UsageError(
            f"train.kl: {train.kl:g} needs logprobs of the initial policy, which this server "
            "cannot compute; write train.kl=0"
        )
    if capabilities.context is not None and server.context > capabilities.context:
        raise UsageError(
            f"server.context: {server.context} is more than the server's window of "
            f"{capabilities.context} tokens"
        )


def _play_parts(experiment: Experiment) -> tuple[RendererChat, Task, OpenEnvFactory, int]:
    """What episodes are played with, beside the policy."""
    server, env, task = experiment.server, experiment.env, experiment.task
    loaded = load_task(task.entrypoint, task.name, task.unfinished_reward, dict(task.params))
    tokenizer = load_tokenizer(server.tokenizer)
    chat = RendererChat(tokenizer, server.renderer)
    chat.check_append_only(loaded.tools)
    envs = OpenEnvFactory(
        env.entrypoint,
        cast(TaskAdapter, loaded),  # OpenEnvFactory checks that it is one
        threads=env.threads,
        open_timeout=env.open_timeout,
        reset_timeout=env.reset_timeout,
        step_timeout=env.step_timeout,
        close_timeout=env.close_timeout,
    )
    return chat, loaded, envs, len(tokenizer)


@asynccontextmanager
async def _running(server: EmbeddedServer, ledger: Ledger) -> AsyncIterator[None]:
    """The embedded server as a borrow: a child process that ends with the run."""
    ledger.borrow("server_process", "requested", kind="process")
    async with server:
        ledger.borrow("server_process", "held", id=server.pid, url=server.url)
        try:
            yield
        finally:
            ledger.borrow("server_process", "returning")
    ledger.borrow("server_process", "released")


async def finish_with(close: Callable[[], Awaitable[None]]) -> None:
    """Close to the end, also when the run is being cancelled."""

    async def closing() -> None:
        await close()

    await finish(closing())
