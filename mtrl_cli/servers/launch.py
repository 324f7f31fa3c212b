"""The embedded server as a child process of the run; see `mtrl_cli.child` for its life."""

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from mtrl_cli.child import ChildServer, StartError
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.wording import one_line

_KEY_VARIABLE = "MTRL_EMBEDDED_KEY"


class EmbeddedServer(ChildServer):
    """One embedded server on a free loopback port.

    Its ``info`` holds, when it is ready, its url, pid, store, context, vocab, …

    Args:
        store: its folder of weights.
        base_model: what clients call the packaged model.
        log: file that its messages are appended to; None keeps them only until the end.
        ready_seconds: how long it may take to start.
        arguments: further command-line arguments of the server.
    """

    def __init__(
        self,
        store: Path,
        *,
        base_model: str = "mtrl-tiny",
        log: Path | None = None,
        ready_seconds: float = 30.0,
        arguments: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.api_key = secrets.token_urlsafe(24)
        super().__init__(
            [
                *(sys.executable, "-m", "mtrl_cli.local"),
                *("--store", str(store), "--host", "127.0.0.1", "--port", "0"),
                *("--base-model", base_model, "--api-key-env", _KEY_VARIABLE),
                *("--parent-pid", str(os.getpid()), *arguments),
            ],
            environment={_KEY_VARIABLE: self.api_key},
            log=log,
            ready_seconds=ready_seconds,
        )

    def ended(self) -> str | None:
        says = super().ended()
        return says and f"the embedded server is gone: {says}"

    def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            ServerError: it ended or was not ready in time; the line holds its last words.
        """
        try:
            super().start()
        except StartError as failed:
            words = one_line(failed.last_words.removeprefix("mtrl serve: "))
            tail = f": {words}" if words else ""
            raise ServerError(f"the embedded server {failed.how}{tail}") from None
