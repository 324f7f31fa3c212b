"""A server as a child process of the run.

Its life is bound three ways: `ChildServer.stop` ends it, and waits until it is gone; a start that
fails or is interrupted ends it before the error goes on; and it watches its parent itself (see
`parent`), so that it does not outlive a parent that was killed. It runs in a session of its own:
a Ctrl-C typed at the terminal reaches mtrl alone, which settles what is in flight first.

The child says on its standard output that it serves: one line of JSON with its ``url``.

Everything here blocks; from an event loop use ``async with``, or `asyncio.to_thread`.
"""

import asyncio
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import mtrl_cli

_WATCH_SECONDS = 0.25
_TERM_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0
_READ_AT_MOST = 65_536


class StartError(Exception):
    """It did not come to serve: ``how``, and the last line that it wrote, as it wrote it."""

    def __init__(self, how: str, last_words: str = "") -> None:
        super().__init__(how)
        self.how = how
        self.last_words = last_words


class ChildServer:
    """One server process, listening where it chooses.

    Args:
        command: what to execute.
        environment: variables beside those of this process.
        log: file that its messages are appended to; None keeps them only until the end.
        ready_seconds: how long it may take to start.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path | None,
        ready_seconds: float,
    ) -> None:
        self._command = list(command)
        self._variables = dict(environment)
        self._log_path = log
        self._ready_seconds = ready_seconds
        self._log: IO[bytes] | None = None
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._ended: str | None = None
        self.url = ""
        self.info: Mapping[str, Any] = {}
        """What it said when it was ready."""

    @property
    def pid(self) -> int | None:
        """The process, from `start` on."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ended(self) -> str | None:
        """How it has ended by itself after it served, in words; None while it lives, and when it
        was stopped."""
        if self._ended is None and self.url and self._process is not None and not self._stopped:
            code = self._process.poll()
            if code is not None:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                log = "" if self._log_path is None else f"; see {self._log_path}"
                self._ended = f"its process ended ({how}){log}"
        return self._ended

    async def watch(self) -> None:
        """Wait until it has ended by itself."""
        while self.ended() is None:  # noqa: ASYNC110 - nothing tells of a child's end
            await asyncio.sleep(_WATCH_SECONDS)

    def start(self) -> None:
        """Start it and wait until it serves.

        Raises:
            StartError: it ended or was not ready in time; nothing of it is left.
        """
        if self._process is not None:
            raise RuntimeError("the server was started already")
        try:
            self._log = self._open_log()
            self._log_start = self._log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=self._environment(),
                start_new_session=True,
            )
            self._await_ready(self._process)
        except OSError as error:
            self.stop()
            raise StartError("cannot be started", str(error)) from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and wait until it is gone. Idempotent."""
        self.ended()  # by itself, before it was stopped
        process, self._stopped = self._process, True
        if process is not None:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_TERM_SECONDS)
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on by itself: what it starts must be ended, not forgotten.
            await asyncio.wait({starting})
            if not starting.cancelled():
                starting.exception()
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    def last_line(self) -> str:
        """The last line that it wrote to its log; nothing once it is stopped."""
        if self._log is None:
            return ""
        self._log.seek(self._log_start)
        lines = self._log.read()[-_READ_AT_MOST:].decode("utf-8", "replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")

    # How it starts.

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, **self._variables}
        # A checkout that is not installed is importable here, but not from every folder.
        root = str(Path(mtrl_cli.__file__).parent.parent)
        if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
            path = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = root if not path else os.pathsep.join((root, path))
        return environment

    def _open_log(self) -> IO[bytes]:
        if self._log_path is None:
            return tempfile.TemporaryFile()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        return self._log_path.open("a+b")

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        line = self._first_line(process.stdout.fileno())
        if line is None:
            raise StartError(f"was not ready within {self._ready_seconds:g} s", self.last_line())
        try:
            info = json.loads(line)
            self.url = str(info["url"])
            self.info = info
        except (ValueError, TypeError, KeyError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_WORDS_SECONDS)
            raise StartError("did not start", self.last_line()) from None
        process.stdout.close()

    def _first_line(self, descriptor: int) -> bytes | None:
        """The first line of its output, or what there was of it; None past the deadline."""
        deadline = time.monotonic() + self._ready_seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in line:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                piece = os.read(descriptor, _READ_AT_MOST)
                if not piece:
                    break
                line += piece
        return line.partition(b"\n")[0]
