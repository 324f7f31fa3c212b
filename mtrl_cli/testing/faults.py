"""Scripted faults of a test server: which request meets which fault.

A fault is planned for an endpoint and spent by the requests that meet it, in the order of
planning. ``executes`` says which side of the fault the server's state is on: a lost reply to an
executed call and one to a call that never ran look the same to the client, and only the
server's own count tells them apart.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "drop", "delay", "status", "cut", "twice", "hang", "body", "fail", "hold", "reset", "late",
    "vanish", "hide", "outlive",
]  # fmt: skip


class Gate:
    """Holds requests until a test opens it, from whatever thread."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.arrived = 0
        """How many requests came to it."""

    def open(self) -> None:
        self._open.set()

    @property
    def holds(self) -> bool:
        """Requests have come to it, and it is closed."""
        return self.arrived > 0 and not self._open.is_set()

    def wait_for(self, arrivals: int, seconds: float = 30.0) -> None:
        """Wait until so many requests have come.

        Raises:
            TimeoutError: they did not.
        """
        deadline = time.monotonic() + seconds
        while self.arrived < arrivals:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.arrived} of {arrivals} requests came to the gate")
            time.sleep(0.01)

    async def passed(self) -> None:
        """For the server: arrive, and go on when it is open."""
        self.arrived += 1
        while not self._open.is_set():  # noqa: ASYNC110 - opened from another thread
            await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Made by the functions of this module."""

    kind: Kind
    executes: bool
    seconds: float = 0.0
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate | None = None


def drop_reply() -> Fault:
    """Execute the call, then close the connection instead of answering."""
    return Fault("drop", executes=True)


def drop_request() -> Fault:
    """Close the connection without executing anything."""
    return Fault("drop", executes=False)


def delay(seconds: float) -> Fault:
    """Execute the call and answer late."""
    return Fault("delay", executes=True, seconds=seconds)


def status(
    code: int,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    retry_after: float | None = None,
    executes: bool = False,
) -> Fault:
    """Answer with this status. ``body``: text and bytes go out as they are, the rest as JSON."""
    out = dict(headers or {})
    if retry_after is not None:
        out["Retry-After"] = str(retry_after)
    return Fault("status", executes=executes, status=code, body=_encode(body), headers=out)


def late(seconds: float) -> Fault:
    """Wait first, then execute the call and answer."""
    return Fault("late", executes=False, seconds=seconds)


def reset(*, executes: bool = True) -> Fault:
    """Reset the connection (RST) instead of answering; for a stream, in the middle of it."""
    return Fault("reset", executes=executes)


def vanish() -> Fault:
    """The sandbox that the request goes to is gone, before anything is executed."""
    return Fault("vanish", executes=False)


def hide(seconds: float) -> Fault:
    """Create the sandbox and answer, but list it only after so many seconds."""
    return Fault("hide", executes=True, seconds=seconds)


def body(content: Any) -> Fault:
    """Execute the call and answer 200 with this body instead of the real one."""
    return Fault("body", executes=True, body=_encode(content))


def cut(after: int = 5) -> Fault:
    """Execute the call, announce the whole reply, send ``after`` bytes of it and close."""
    return Fault("cut", executes=True, status=after)


def twice() -> Fault:
    """Execute the call once and send its reply two times over the same connection."""
    return Fault("twice", executes=True)


def hang(*, executes: bool = True) -> Fault:
    """Never answer; the connection stays open until the client or the server closes it."""
    return Fault("hang", executes=executes)


def hold(gate: Gate, *, executes: bool = True) -> Fault:
    """No fault at all, but held at ``gate``: the reply, or the request before it is executed."""
    return Fault("hold", executes=executes, gate=gate)


def outlive(gate: Gate) -> Fault:
    """Execute the call when ``gate`` opens, whether or not the client still waits for it."""
    return Fault("outlive", executes=False, gate=gate)


def fail(message: str, category: str | None = None, *, applied: bool = False) -> Fault:
    """Accept the call; its execution fails, which the poll reports.

    With a ``category`` the failure is the 200 reply ``{"error", "category"}``, without one the
    400 reply ``{"detail"}``. ``applied``: the call took effect before it failed.
    """
    error: dict[str, Any] = {"detail": message}
    if category is not None:
        error = {"error": message, "category": category}
    return Fault("fail", executes=applied, error=error)


def _encode(content: Any) -> bytes:
    if content is None:
        return b""
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    return json.dumps(content).encode()


Match = Callable[[Mapping[str, Any]], bool]


@dataclass(slots=True)
class _Planned:
    endpoint: str
    fault: Fault
    left: int
    skip: int
    match: Match | None


class FaultPlan:
    """The faults still to come, and how many were met."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []
        self.met = 0

    def add(
        self,
        endpoint: str,
        fault: Fault,
        *,
        times: int = 1,
        skip: int = 0,
        match: Match | None = None,
    ) -> None:
        """Plan a fault.

        Args:
            endpoint: the path below ``/api/v1/``, such as ``asample``.
            fault: what happens.
            times: how many requests meet it; -1 for all of them.
            skip: how many matching requests pass unharmed first.
            match: only requests whose JSON body satisfies this.
        """
        self._planned.append(_Planned(endpoint, fault, times, skip, match))

    def clear(self) -> None:
        self._planned.clear()

    def next(self, endpoint: str, body: Mapping[str, Any]) -> Fault | None:
        """The fault that this request meets, now spent; None for an ordinary request."""
        for planned in self._planned:
            if planned.endpoint != endpoint or planned.left == 0:
                continue
            if planned.match is not None and not planned.match(body):
                continue
            if planned.skip > 0:
                planned.skip -= 1
                continue
            planned.left -= 1
            self.met += 1
            return planned.fault
        return None
