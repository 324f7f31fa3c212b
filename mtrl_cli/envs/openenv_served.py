"""An OpenEnv server that mtrl starts for the run, and ends with it."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.child import ChildServer, StartError
from mtrl_cli.errors import MtrlError
from mtrl_cli.foreign import line

MODULE = "mtrl_cli.envs.openenv_server"
LOG = "env-server.log"
"""Its log's name in the run's folder."""

_READY_SECONDS = 120.0
"""OpenEnv's server packages alone take seconds to import."""


class ServedEnvironments(ChildServer):
    """The child process; see `openenv_server` for what it does.

    Args:
        app: an application as ``module:app``; otherwise
        entrypoint: an Environment class as ``module:Class``, made with ``params``.
        concurrency: how many sessions the run holds at once.
    """

    def __init__(
        self,
        *,
        app: str | None,
        entrypoint: str | None,
        params: Mapping[str, Any],
        concurrency: int,
        log: Path | None,
    ) -> None:
        self._what = f"env.app {app!r}" if app is not None else f"env.entrypoint {entrypoint!r}"
        what = ("--app", app) if app is not None else ("--entrypoint", str(entrypoint))
        super().__init__(
            [
                *(sys.executable, "-m", MODULE, *what),
                *("--params", json.dumps(dict(params))),
                *("--sessions", str(sessions(concurrency))),
                *("--parent-pid", str(os.getpid())),
            ],
            environment={},
            log=log,
            ready_seconds=_READY_SECONDS,
        )

    def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            MtrlError: it ended or was not ready in time; the line holds its last words.
        """
        try:
            super().start()
        except StartError as failed:
            words = line(failed.last_words) if failed.last_words else "it said nothing"
            raise MtrlError(f"{self._what}: the environment server {failed.how}: {words}") from None

    def check_alive(self) -> None:
        """Raises: MtrlError: it has ended, and every environment with it."""
        if not self.alive:
            last = self.last_line()
            words = f": {line(last)}" if last else ""
            raise MtrlError(f"{self._what}: the environment server of this run has ended{words}")


def sessions(concurrency: int) -> int:
    """How many the server allows: some more than the run holds, because a server hears of the end
    of one a little later than it is asked for the next."""
    return concurrency if concurrency == 1 else concurrency + max(4, concurrency // 8)
