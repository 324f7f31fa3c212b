"""The process that serves an OpenEnv environment for one run: ``python -m`` this module.

It serves either an application that exists, or an ``Environment`` class through OpenEnv's
``create_app``, on a free loopback port, tells its address in one line of JSON on standard output,
and ends on SIGTERM or when its parent is gone. All else that is written goes to standard error,
which is the run's ``env-server.log``.
"""

import argparse
import functools
import json
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

from mtrl_cli.envs.openenv_class import action_class, check_class, is_mcp, observation_class
from mtrl_cli.errors import UsageError
from mtrl_cli.light_import import light_packages
from mtrl_cli.parent import ParentWatch
from mtrl_cli.tasks.load import load_class, load_object

SESSIONS_VARIABLE = "MAX_CONCURRENT_ENVS"
"""Where OpenEnv's own applications read how many sessions they allow."""

_GRACE = 2
"""Seconds that open sessions may take at the end."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m mtrl_cli.envs.openenv_server")
    add = made.add_argument
    add("--app", metavar="MODULE:APP", help="an ASGI application")
    add("--entrypoint", metavar="MODULE:CLASS", help="an OpenEnv Environment class")
    add("--params", default="{}", metavar="JSON", help="keyword arguments of the class")
    add("--sessions", type=int, required=True, help="sessions at once")
    add("--parent-pid", type=int, required=True, help="end when this process is gone")
    return made


def application(arguments: argparse.Namespace) -> Any:
    """The ASGI application.

    Raises:
        UsageError: it cannot be loaded or made.
    """
    if arguments.app is not None:
        app = load_object(arguments.app, "env.app")
        if not callable(app):
            raise UsageError(
                f"env.app {arguments.app!r}: it is a {type(app).__name__}, not an application"
            )
        return app
    entrypoint = arguments.entrypoint
    environment_class = load_class(entrypoint, "env.entrypoint")
    check_class(entrypoint, environment_class)
    if arguments.sessions > 1 and not getattr(
        environment_class, "SUPPORTS_CONCURRENT_SESSIONS", False
    ):
        raise UsageError(
            f"env.entrypoint {entrypoint!r}: a server holds one session of it; write"
            " SUPPORTS_CONCURRENT_SESSIONS = True in the class if its instances share nothing, or"
            " run.concurrency=1"
        )
    from openenv.core.env_server import create_app

    if is_mcp(environment_class):
        from openenv.core.env_server.mcp_types import CallToolAction

        action: Any = CallToolAction
    else:
        action = action_class(entrypoint, environment_class)
    return create_app(
        tracing(configured(environment_class, json.loads(arguments.params))),
        action,
        observation_class(environment_class),
        max_concurrent_envs=arguments.sessions,
    )


def configured(environment_class: type, params: dict[str, Any]) -> type:
    """A class that OpenEnv can make without arguments."""
    if not params:
        return environment_class

    def init(self: Any) -> None:
        environment_class.__init__(self, **params)  # type: ignore[misc]

    return type(environment_class.__name__, (environment_class,), {"__init__": init})


def tracing(environment_class: type) -> type:
    """A class whose own ``reset`` and ``step`` write what they raise to the log; OpenEnv answers
    with an error's text alone."""

    def traced(method: Any) -> Any:
        @functools.wraps(method)
        def called(self: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return method(self, *arguments, **named)
            except Exception as error:
                if type(error).__name__ != "ToolError":  # an answer, not a fault
                    traceback.print_exc()
                raise

        return called

    methods = {name: traced(getattr(environment_class, name)) for name in ("reset", "step")}
    return type(environment_class.__name__, (environment_class,), methods)


def serve(app: Any, parent_pid: int, ready: TextIO) -> None:
    """Serve until SIGTERM or the parent's end."""
    import uvicorn

    class Announced(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready.write(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
                ready.flush()

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = Announced(
        uvicorn.Config(
            app,
            log_level="warning",
            # Both ends are ours, on one machine: a slow environment is not a broken line.
            ws_ping_interval=None,
            timeout_graceful_shutdown=_GRACE,
        )
    )

    def orphaned() -> None:
        server.should_exit = True

    watch = ParentWatch(parent_pid, orphaned)
    try:
        server.run(sockets=[listener])
    finally:
        watch.stop()
        listener.close()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    # What an environment prints must not be taken for the ready line.
    ready = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ[SESSIONS_VARIABLE] = str(arguments.sessions)
    # What is wrong with the class is told before OpenEnv's server is imported, which takes seconds.
    light_packages("openenv", "openenv.core", "openenv.core.env_server")
    try:
        serve(application(arguments), arguments.parent_pid, ready)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
