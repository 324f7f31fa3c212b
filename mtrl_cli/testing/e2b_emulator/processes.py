"""One command of a sandbox: a real process, with whoever listens to its output.

As in E2B: output that nobody listens to is dropped, a listener that leaves does not end the
command, and a signal goes to the command itself. Only the sandbox's end takes its children too.
"""

import asyncio
import base64
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHUNK = 32 * 1024
"""The most bytes of output in one event."""


class Process:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process, config: Mapping[str, Any]) -> None:
        self._process = process
        self._listeners: set[asyncio.Queue[dict[str, Any]]] = set()
        self._writing = asyncio.Lock()
        self.config = config
        self.end: dict[str, Any] | None = None
        """The end event, once it has ended."""
        self._pump = asyncio.ensure_future(self._run())

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls, config: Mapping[str, Any], *, home: Path, environ: Mapping[str, str], stdin: bool
    ) -> "Process":
        """Raises: OSError: it cannot be started."""
        process = await asyncio.create_subprocess_exec(
            str(config["cmd"]),
            *map(str, config.get("args", ())),
            cwd=home / str(config.get("cwd") or "."),
            env={**environ, **config.get("envs", {})},
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, config)

    def listen(self) -> "asyncio.Queue[dict[str, Any]]":
        """Events from now on; the last one is the end event."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        if self.end is not None:
            queue.put_nowait(self.end)
        self._listeners.add(queue)
        return queue

    def leave(self, queue: "asyncio.Queue[dict[str, Any]]") -> None:
        self._listeners.discard(queue)

    @property
    def over(self) -> bool:
        """Whether the command itself has ended."""
        return self._process.returncode is not None

    async def write(self, data: bytes) -> None:
        """Raises: ConnectionError, RuntimeError: it takes no input."""
        if self._process.stdin is None:
            raise RuntimeError("the command was started without stdin")
        async with self._writing:
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def signal(self, number: int) -> None:
        """To the command itself, not to its children."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it with everything that it started in its session.

        What a command has left that is over already is not ours to find: its number may by now
        be somebody else's.
        """
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump
        await self._process.wait()
        transport: Any = self._process._transport  # type: ignore[attr-defined]
        transport.close()  # a grandchild may hold the pipes open

    async def _run(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        # As in envd, the command ends when its output does.
        await asyncio.gather(
            self._read(self._process.stdout, "stdout"), self._read(self._process.stderr, "stderr")
        )
        code = await self._process.wait()
        status = f"exit status {code}" if code >= 0 else f"signal: {-code}"
        self.end = {"end": {"exitCode": max(code, -1), "exited": code >= 0, "status": status}}
        self._tell(self.end)

    async def _read(self, stream: asyncio.StreamReader, name: str) -> None:
        while chunk := await stream.read(CHUNK):
            self._tell({"data": {name: base64.b64encode(chunk).decode()}})

    def _tell(self, event: dict[str, Any]) -> None:
        for queue in self._listeners:
            queue.put_nowait(event)
