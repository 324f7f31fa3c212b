"""The sandboxes of the emulator: what lives, since when, until when, and how the others ended."""

import asyncio
import contextlib
import datetime
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtrl_cli.testing.e2b_emulator.processes import Process

_MARK = "MTRL_E2B_EMULATOR"
"""In the environment of everything that runs in a sandbox."""


class Refusal(Exception):  # noqa: N818
    """An HTTP error reply of the REST API."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(eq=False)
class Sandbox:
    """One live sandbox."""

    id: str
    body: Mapping[str, Any]
    home: Path
    started: float
    ends: float
    """Both as `time.time`."""
    visible: float
    """From when on it is listed."""
    token: str
    processes: dict[int, Process] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return dict(self.body.get("metadata") or {})

    def listed(self) -> dict[str, Any]:
        """As the API lists it."""
        return {
            "templateID": self.body.get("templateID", "base"),
            "sandboxID": self.id,
            "clientID": "emulator",
            "startedAt": _iso(self.started),
            "endAt": _iso(self.ends),
            "cpuCount": 2,
            "memoryMB": 512,
            "diskSizeMB": 512,
            "state": "running",
            "envdVersion": ENVD_VERSION,
            "metadata": self.metadata,
        }

    def made(self) -> dict[str, Any]:
        """As the API answers a create."""
        return {
            "templateID": self.body.get("templateID", "base"),
            "sandboxID": self.id,
            "clientID": "emulator",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": self.token,
            "domain": None,
        }


ENVD_VERSION = "0.6.4"


class Sandboxes:
    """All sandboxes of one emulator. Its numbers are kept after it is closed.

    Args:
        at_once: how many may live; more are refused with 429.
        per_second: how many may be created a second; more are refused with 429.
        longest: the longest lifetime in seconds; more is refused with 400.
    """

    def __init__(
        self, *, at_once: int | None, per_second: float | None, longest: float | None
    ) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._longest = longest
        self._numbers = itertools.count(1)
        self._recent: deque[float] = deque()
        self._answered: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="mtrl-e2b-"))
        self._name = self._folder.name
        self.live: dict[str, Sandbox] = {}
        self.ended: Counter[str] = Counter()
        """How many ended ``killed``, ``expired``, ``vanished`` or ``closed``."""
        self.metadata: dict[str, Mapping[str, str]] = {}
        """Of every sandbox that was ever created."""
        self.most = 0
        bin_ = self._folder / "bin"
        bin_.mkdir()
        (bin_ / "python3").symlink_to(getattr(sys, "_base_executable", sys.executable))

    def create(
        self, body: Mapping[str, Any], key: str | None, *, hidden: float = 0.0
    ) -> dict[str, Any]:
        """Raises: Refusal."""
        if key is not None and key in self._answered:
            before, earlier = self._answered[key]
            if before != body:
                raise Refusal(409, "idempotency key was used with another request")
            if earlier in self.live:
                return self.live[earlier].made()
            raise Refusal(409, "the sandbox of this idempotency key is gone")
        self._check_limits(body)
        now, number = time.time(), next(self._numbers)
        lifetime = float(body.get("timeout", 15))
        identity = f"e{number:06d}{os.urandom(4).hex()}"
        home = self._folder / identity
        home.mkdir()
        (home / ".bash_profile").write_text(f'export PATH="{self._folder}/bin:$PATH"\n')
        sandbox = Sandbox(
            identity, body, home, now, now + lifetime, now + hidden, os.urandom(8).hex()
        )
        self.live[identity] = sandbox
        self.metadata[identity] = sandbox.metadata
        self.most = max(self.most, len(self.live))
        self.set_lifetime(sandbox, lifetime)
        if key is not None:
            self._answered[key] = (body, identity)
        return sandbox.made()

    def set_lifetime(self, sandbox: Sandbox, seconds: float) -> None:
        """From now on."""
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.ends = time.time() + seconds
        loop = asyncio.get_running_loop()
        sandbox.timer = loop.call_later(seconds, self._expire, sandbox)

    def listing(self, metadata: Mapping[str, str]) -> list[Sandbox]:
        """Those that are listed yet and carry this metadata, the oldest first."""
        now = time.time()
        return [
            sandbox
            for sandbox in self.live.values()
            if sandbox.visible <= now and metadata.items() <= sandbox.metadata.items()
        ]

    async def end(self, identity: str, how: str = "killed") -> bool:
        """End a sandbox and everything in it; False if it is not there."""
        sandbox = self.live.pop(identity, None)
        if sandbox is None:
            return False
        self.ended[how] += 1
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.gone.set()
        over = any(process.over for process in sandbox.processes.values())
        await asyncio.gather(*(process.kill() for process in sandbox.processes.values()))
        if over:
            _kill_marked(f"E2B_SANDBOX_ID={identity}")
        shutil.rmtree(sandbox.home, ignore_errors=True)
        return True

    async def start(self, sandbox: Sandbox, request: Mapping[str, Any]) -> Process:
        """Raises: OSError."""
        environ = {
            "HOME": str(sandbox.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "E2B_SANDBOX": "true",
            "E2B_SANDBOX_ID": sandbox.id,
            _MARK: self._name,
            **dict(sandbox.body.get("envVars") or {}),
        }
        process = await Process.start(
            request["process"],
            home=sandbox.home,
            environ=environ,
            stdin=bool(request.get("stdin", True)),
        )
        sandbox.processes[process.pid] = process
        if sandbox.gone.is_set():
            await process.kill()
        return process

    async def close(self) -> None:
        """End them all, and whatever has escaped from them."""
        while self.live:
            await asyncio.gather(*(self.end(one, "closed") for one in list(self.live)))
        if self._ending:
            await asyncio.wait(self._ending)
        _kill_marked(f"{_MARK}={self._name}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def counts(self) -> dict[str, int]:
        return {
            "created": len(self.metadata),
            "live": len(self.live),
            "most": self.most,
            **{how: self.ended[how] for how in ("killed", "expired", "vanished")},
        }

    def _check_limits(self, body: Mapping[str, Any]) -> None:
        lifetime = float(body.get("timeout", 15))
        if self._longest is not None and lifetime > self._longest:
            raise Refusal(400, f"timeout cannot be greater than {self._longest / 3600:g} hours")
        now = time.monotonic()
        if self._per_second is not None:
            window = max(1.0, 1.0 / self._per_second)
            while self._recent and now - self._recent[0] >= window:
                self._recent.popleft()
            if len(self._recent) >= max(1.0, self._per_second):
                raise Refusal(429, "sandbox creation rate limit reached", retry_after=1)
        if self._at_once is not None and len(self.live) >= self._at_once:
            raise Refusal(
                429,
                "you have reached the maximum number of concurrent E2B sandboxes"
                f" ({self._at_once})",
            )
        self._recent.append(now)

    def _expire(self, sandbox: Sandbox) -> None:
        task = asyncio.ensure_future(self._end_expired(sandbox.id))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_expired(self, identity: str) -> None:
        await self.end(identity, "expired")


def _iso(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat()


def _kill_marked(mark: str) -> None:
    """End the processes of this machine that have ``mark`` in their environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
