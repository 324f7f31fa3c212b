"""From the ``env`` section of an experiment to the backend that it names."""

from collections.abc import Mapping
from pathlib import Path

from mtrl_cli.config.schema import EnvConfig, EnvKind
from mtrl_cli.envs.adapter import TaskAdapter
from mtrl_cli.envs.interface import Deadlines, Rules, Watch
from mtrl_cli.envs.openenv import OpenEnvFactory
from mtrl_cli.envs.openenv_class import check_class
from mtrl_cli.envs.openenv_remote import RemoteFactory
from mtrl_cli.envs.openenv_served import ServedEnvironments
from mtrl_cli.rollout.ports import EnvironmentFactory
from mtrl_cli.tasks.load import load_class


async def check_environment(env: EnvConfig, adapter: TaskAdapter) -> None:
    """Load what can be loaded, and reach what can be reached, before anything is created.

    Raises:
        MtrlError: the environment is not there, or is none.
    """
    if env.kind is EnvKind.openenv_served:
        if env.app is None and env.entrypoint is not None:
            check_class(env.entrypoint, load_class(env.entrypoint, "env.entrypoint"))
        return
    factory = environments_for(env, adapter, Watch())
    if isinstance(factory, RemoteFactory):
        await factory.check()


def server_for(env: EnvConfig, concurrency: int, log: Path | None) -> ServedEnvironments | None:
    """The server that is to be started for the run; None where none is."""
    if env.kind is not EnvKind.openenv_served:
        return None
    return ServedEnvironments(
        app=env.app,
        entrypoint=env.entrypoint,
        params=env.params,
        concurrency=concurrency,
        log=log,
    )


def environments_for(
    env: EnvConfig,
    adapter: TaskAdapter,
    watch: Watch,
    server: ServedEnvironments | None = None,
) -> EnvironmentFactory:
    """What lends environments to trajectories. ``server`` is the one that was started.

    Raises:
        UsageError: an entrypoint cannot be loaded, or is no environment.
    """
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
