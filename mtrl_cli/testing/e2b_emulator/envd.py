"""Inside a sandbox: files, and commands over the Connect protocol (`process.Process`)."""

import asyncio
import base64
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from mtrl_cli.testing.e2b_emulator.processes import Process
from mtrl_cli.testing.e2b_emulator.sandboxes import Sandbox, Sandboxes
from mtrl_cli.testing.e2b_emulator.wire import (
    STREAM_TYPE,
    break_connection,
    connect_error,
    end_frame,
    frame,
    rest_error,
)
from mtrl_cli.testing.faults import FaultPlan

_SIGNALS = {"SIGNAL_SIGTERM": signal.SIGTERM, "SIGNAL_SIGKILL": signal.SIGKILL}


class Envd:
    """The agent inside each sandbox."""

    def __init__(self, sandboxes: Sandboxes, faults: FaultPlan) -> None:
        self._sandboxes = sandboxes
        self._faults = faults
        self.unary: Mapping[
            str, Callable[[Sandbox, Mapping[str, Any]], Awaitable[web.Response]]
        ] = {
            "List": self._list,
            "SendInput": self._send_input,
            "CloseStdin": self._close_stdin,
            "SendSignal": self._send_signal,
        }

    # --- files ------------------------------------------------------------------------------

    async def write_file(self, sandbox: Sandbox, request: web.Request) -> web.Response:
        """One file as the body, or several as the parts of a form."""
        given = request.query.get("path")
        written = []
        if request.content_type.startswith("multipart/"):
            async for part in await request.multipart():
                name = given or part.filename or ""  # type: ignore[union-attr]
                data = await part.read()  # type: ignore[union-attr]
                written.append(_write(sandbox, name, bytes(data)))
        else:
            written.append(_write(sandbox, given or "", await request.read()))
        return web.json_response(written)

    async def read_file(self, sandbox: Sandbox, request: web.Request) -> web.Response:
        path = sandbox.home / request.query.get("path", "")
        if not path.is_file():
            return rest_error(404, f"path {path} does not exist")
        return web.Response(body=path.read_bytes())

    # --- commands ---------------------------------------------------------------------------

    async def start(
        self, sandbox: Sandbox, request: web.Request, message: Mapping[str, Any]
    ) -> web.StreamResponse:
        try:
            process = await self._sandboxes.start(sandbox, message)
        except OSError as error:
            return await _refused(request, "invalid_argument", str(error))
        _end_at(process, request.headers.get("Connect-Timeout-Ms"))
        return await self._stream(sandbox, request, process)

    async def connect(
        self, sandbox: Sandbox, request: web.Request, message: Mapping[str, Any]
    ) -> web.StreamResponse:
        process = _process(sandbox, message)
        if process is None:
            return await _refused(request, "not_found", "process not found")
        return await self._stream(sandbox, request, process)

    async def _stream(
        self, sandbox: Sandbox, request: web.Request, process: Process
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": STREAM_TYPE})
        events = process.listen()
        interval = float(request.headers.get("Keepalive-Ping-Interval", 90))
        gone = asyncio.ensure_future(sandbox.gone.wait())
        try:
            await response.prepare(request)
            await response.write(frame({"event": {"start": {"pid": process.pid}}}))
            while True:
                event = await _next_event(events, gone, interval)
                if gone.done():
                    break_connection(request, reset=True)
                    return response
                if event is None:
                    await response.write(frame({"event": {"keepalive": {}}}))
                    continue
                if "data" in event and self._broken(sandbox, request):
                    return response
                await response.write(frame({"event": event}))
                if "end" in event:
                    await response.write(end_frame())
                    return response
        except ConnectionError:
            return response  # whoever listened has left, which ends no command
        finally:
            gone.cancel()
            process.leave(events)

    def _broken(self, sandbox: Sandbox, request: web.Request) -> bool:
        """Whether this piece of output meets a fault."""
        fault = self._faults.next("output", dict(sandbox.metadata))
        if fault is None:
            return False
        break_connection(request, reset=fault.kind == "reset")
        return True

    async def _list(self, sandbox: Sandbox, message: Mapping[str, Any]) -> web.Response:
        running = [
            {"pid": process.pid, "config": process.config}
            for process in sandbox.processes.values()
            if process.end is None
        ]
        return web.json_response({"processes": running})

    async def _send_input(self, sandbox: Sandbox, message: Mapping[str, Any]) -> web.Response:
        process = _process(sandbox, message)
        if process is None or process.end is not None:
            return connect_error("not_found", "process not found")
        try:
            await process.write(base64.b64decode(message["input"]["stdin"]))
        except (ConnectionError, RuntimeError) as error:
            return connect_error("failed_precondition", f"error writing to stdin: {error}")
        return web.json_response({})

    async def _close_stdin(self, sandbox: Sandbox, message: Mapping[str, Any]) -> web.Response:
        process = _process(sandbox, message)
        if process is None:
            return connect_error("not_found", "process not found")
        process.close_stdin()
        return web.json_response({})

    async def _send_signal(self, sandbox: Sandbox, message: Mapping[str, Any]) -> web.Response:
        process = _process(sandbox, message)
        if process is None or process.end is not None:
            return connect_error("not_found", "process not found")
        process.signal(_SIGNALS[str(message["signal"])])
        return web.json_response({})


def _process(sandbox: Sandbox, message: Mapping[str, Any]) -> Process | None:
    return sandbox.processes.get(int(message["process"]["pid"]))


async def _next_event(
    events: "asyncio.Queue[dict[str, Any]]", gone: "asyncio.Future[Any]", seconds: float
) -> dict[str, Any] | None:
    """None where none comes in time, or before the sandbox is gone."""
    event = asyncio.ensure_future(events.get())
    try:
        await asyncio.wait({event, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return event.result() if event.done() else None
    finally:
        event.cancel()
        await asyncio.wait([event])


async def _refused(request: web.Request, code: str, text: str) -> web.StreamResponse:
    """A stream that ends at once: its status is 200, and the error stands in the end frame."""
    response = web.StreamResponse(headers={"Content-Type": STREAM_TYPE})
    await response.prepare(request)
    await response.write(end_frame({"code": code, "message": text}))
    return response


def _end_at(process: Process, milliseconds: str | None) -> None:
    """A command's own deadline: SIGKILL to the command, not to its children."""
    if milliseconds is not None and int(milliseconds) > 0:
        loop = asyncio.get_running_loop()
        loop.call_later(int(milliseconds) / 1000, process.signal, signal.SIGKILL)


def _write(sandbox: Sandbox, name: str, data: bytes) -> dict[str, str]:
    path = sandbox.home / name
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return {"name": Path(name).name, "type": "file", "path": str(path)}
