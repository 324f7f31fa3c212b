"""The life of the server process: listen, say where, serve until told to end, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shlex
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from mtrl_cli import __version__
from mtrl_cli.local.app import App
from mtrl_cli.local.engine import Shape, Weights
from mtrl_cli.local.service import Service, Settings
from mtrl_cli.parent import ParentWatch

BACKLOG = 1024


class StartError(Exception):
    """One line that says what is wrong and what to do instead."""


@dataclass(frozen=True)
class Place:
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    parent_pid: int | None = None
    ready_file: Path | None = None
    json: bool = False
    """The ready line goes to stdout also where that is a terminal, for a person to read."""


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything else is made, so that a taken port leaves nothing behind."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartError(f"--host: {host!r} cannot be resolved ({error.strerror})") from None
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0).lower()
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartError(f"--host: {host} is not an address of this machine") from None
        hint = "use another, or 0 for a free one"
        raise StartError(f"--port: cannot listen on {host}:{port}: {reason}; {hint}") from None
    return listener


async def serve(
    place: Place, settings: Settings, shape: Shape, base: Weights, listener: socket.socket
) -> int:
    """Serve until SIGTERM, SIGINT (without a parent) or the parent's death; the exit code."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if place.parent_pid is None:
        loop.add_signal_handler(signal.SIGINT, stop.set)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent settles first
    watch = None
    if place.parent_pid is not None:

        def gone() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)

        try:
            watch = ParentWatch(place.parent_pid, gone)
        except ProcessLookupError as error:
            listener.close()
            raise StartError(f"--parent-pid: {error}") from None
    service = Service(settings, shape, base)
    runner = web.ServerRunner(App(service, place.api_key).server(), shutdown_timeout=0.5)
    try:
        await runner.setup()
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        _announce(place, settings, shape, listener)
        await stop.wait()
    finally:
        if place.parent_pid is None:
            # The end is on its way, and more of it would only be told by a traceback: a loop that
            # closes gives back Python's own handlers.
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        service.promises.close()
        await runner.cleanup()
        ended = await service.close()
        if place.ready_file is not None:
            place.ready_file.unlink(missing_ok=True)
        if watch is not None:
            watch.stop()
    if place.parent_pid is None and sys.stderr.isatty():
        kept = sum(len(service.store.checkpoints(model)) for model in service.store.models())
        what = "1 snapshot" if kept == 1 else f"{kept:,} snapshots"
        # Over the ^C that the terminal has just written.
        sys.stderr.write(f"\rmtrl serve: stopped; {what} kept in {settings.store}\n")
    if not ended:  # a step that cannot be interrupted is still running in its thread
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _announce(place: Place, settings: Settings, shape: Shape, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    line = json.dumps(
        {
            "url": url,
            "pid": os.getpid(),
            "store": str(settings.store),
            "base_model": settings.base_model,
            "context": shape.context,
            "vocab": shape.vocab,
            "version": __version__,
        }
    )
    if place.ready_file is not None:
        beside = place.ready_file.with_name(f".{place.ready_file.name}.{os.getpid()}")
        beside.write_text(line + "\n")
        beside.replace(place.ready_file)
    if place.json or not sys.stdout.isatty():
        with contextlib.suppress(OSError):  # nobody may be reading
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    warning = "" if place.api_key or host in ("127.0.0.1", "::1") else " WITHOUT A KEY"
    told = [f"mtrl serve: {settings.base_model} on {url}{warning}, store {settings.store}"]
    if place.parent_pid is None and sys.stderr.isatty():
        told += ["In another shell, to train on it:", _used_by(place, settings, host, port)]
        told.append("Ctrl-C ends it.")
    sys.stderr.write("\n".join(told) + "\n")


def _used_by(place: Place, settings: Settings, host: str, port: int) -> str:
    """The command that trains on this server, for a shell of this machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    # Brackets are a pattern to the shell and a list to the overrides' grammar.
    base_url = f"server.base_url=http://{reached}:{port}"
    if ":" in reached:
        base_url = f"'server.base_url=\"http://[{reached}]:{port}\"'"
    key = "MTRL_API_KEY=KEY " if place.api_key else ""
    name = settings.base_model
    model = "" if name == Settings.base_model else f" server.base_model={shlex.quote(name)}"
    return f"{key}mtrl train {base_url}{model}"
