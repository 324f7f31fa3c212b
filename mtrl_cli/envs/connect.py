"""From an experiment to the environment backend that its ``env`` section names."""

from collections.abc import Mapping
from pathlib import Path

from mtrl_cli.config.rules.sandboxes import sandbox_limits
from mtrl_cli.config.schema import EnvConfig, EnvKind, Experiment
from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.e2b.backend import E2BFactory, Limits
from mtrl_cli.envs.interface import Deadlines, Rules, Watch
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.envs.openenv_class import check_class
from mtrl_cli.envs.openenv_remote import RemoteFactory
from mtrl_cli.envs.openenv_served import ServedEnvironments
from mtrl_cli.rollout.ports import EnvironmentFactory
from mtrl_cli.tasks.load import load_class


async def check_environment(experiment: Experiment, adapter: TaskAdapter) -> None:
    """Load what can be loaded, and reach what can be reached, before anything is created.

    Raises:
        MtrlError: the environment is not there, or is none.
    """
    env = experiment.env
    if env.kind is EnvKind.openenv_served:
        if env.app is None and env.entrypoint is not None:
            check_class(env.entrypoint, load_class(env.entrypoint, "env.entrypoint"))
        return
    factory = environments_for(experiment, adapter, Watch())
    if isinstance(factory, RemoteFactory | E2BFactory):
        await factory.check()


def server_for(experiment: Experiment, log: Path | None) -> ServedEnvironments | None:
    """The server that is to be started for the run; None where none is."""
    env = experiment.env
    if env.kind is not EnvKind.openenv_served:
        return None
    return ServedEnvironments(
        app=env.app,
        entrypoint=env.entrypoint,
        params=env.params,
        concurrency=experiment.run.concurrency,
        log=log,
    )


def environments_for(
    experiment: Experiment,
    adapter: TaskAdapter,
    watch: Watch,
    server: ServedEnvironments | None = None,
) -> EnvironmentFactory:
    """What lends environments to trajectories. ``server`` is the one that was started.

    Raises:
        UsageError: an entrypoint cannot be loaded, or is no environment; what a backend needs is
            not installed.
    """
    env = experiment.env
    deadlines = Deadlines(env.open_timeout, env.reset_timeout, env.step_timeout, env.close_timeout)
    rules = Rules(env.reward.value, env.max_observation)
    if env.kind is EnvKind.openenv:
        return OpenEnvFactory(
            str(env.entrypoint),
            adapter,
            params=env.params,
            threads=env.threads,
            deadlines=deadlines,
            rules=rules,
            watch=watch,
        )
    if env.kind is EnvKind.e2b:
        allowed = sandbox_limits(env.e2b)
        return E2BFactory(
            str(env.entrypoint),
            adapter,
            api_key=env.e2b.api_key or "",
            template=env.e2b.template,
            files=env.e2b.files,
            params=env.params,
            limits=Limits(allowed.at_once, allowed.per_second, allowed.longest, env.e2b.settles),
            life=experiment.budget.deadline,
            deadlines=deadlines,
            rules=rules,
            watch=watch,
        )
    return RemoteFactory(
        str(env.base_url) if server is None else server.url,
        adapter,
        headers=_headers(env) if server is None else {},
        deadlines=deadlines,
        rules=rules,
        watch=watch,
        check_server=server.check_alive if server is not None else lambda: None,
    )


def _headers(env: EnvConfig) -> Mapping[str, str]:
    key = {} if env.api_key is None else {"Authorization": f"Bearer {env.api_key}"}
    return {**key, **env.headers}
