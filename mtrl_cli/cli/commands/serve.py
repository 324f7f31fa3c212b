"""``mtrl serve``: the embedded policy server in the foreground.

The server is a process of its own and this command becomes it, so that signals and the exit
code are the server's.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from mtrl_cli.errors import UsageError
from mtrl_cli.runs.places import default_store


def serve(
    host: str, port: int, store: Path | None, api_key_env: str | None, as_json: bool
) -> NoReturn:
    """Become the server. Returns only by raising `UsageError`."""
    if api_key_env is not None and not os.environ.get(api_key_env):
        raise UsageError(f"environment variable {api_key_env} is not set (--api-key-env)")
    _require_free(host, port)
    arguments = ["--store", str(store or default_store()), "--host", host, "--port", str(port)]
    if api_key_env is not None:
        arguments += ["--api-key-env", api_key_env]
    if as_json:
        arguments.append("--json")
    sys.stdout.flush()
    # The server's interpreter takes a moment to start; a Ctrl-C waits until it can be answered.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, "-m", "mtrl_cli.local", *arguments])


def _require_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before a model is loaded for nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--host: {host!r} cannot be resolved ({reason}); write an address of this machine"
        ) from error
    try:
        with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                f"--host: {host} is not an address of this machine; write one of its own, such as "
                "127.0.0.1"
            ) from error
        raise UsageError(
            f"--port: cannot listen on {host}:{port}: {reason}; choose another (0: a free one)"
        ) from error
