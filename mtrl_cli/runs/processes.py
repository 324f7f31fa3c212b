"""Processes by name: which one a record means, whether it lives, how it is ended.

A pid alone names nothing, because it is given away again. A process is named by the kernel's boot
id, the pid namespace, the pid and the start time (field 22 of ``/proc/PID/stat``). Where one of
these differs from ours, or there is no /proc, nothing can be said from here: it is *unseen*.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_TERM_SECONDS, _KILL_SECONDS = 5.0, 2.0
_DEAD = "ZX"
_STATE, _START = 0, 19
"""Where fields 3 and 22 of ``stat`` are, counted from behind the command's name."""


class Standing(Enum):
    ALIVE = "alive"
    GONE = "gone"
    UNSEEN = "unseen"


def process_facts(pid: int) -> dict[str, Any]:
    """What tells this process from every other one, for a record."""
    stat = _stat(pid)
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid_ns": _pid_namespace(),
        "pid": pid,
        "pid_start": int(stat[_START]) if stat else None,
    }


def standing(facts: Mapping[str, Any]) -> Standing:
    """Whether the process that `process_facts` described lives."""
    pid, boot = facts.get("pid"), _boot()
    here = boot is not None and facts.get("boot") == boot
    if not here or facts.get("pid_ns") != _pid_namespace() or not isinstance(pid, int):
        return Standing.UNSEEN
    stat = _stat(pid)
    if stat is None or stat[_STATE] in _DEAD or int(stat[_START]) != facts.get("pid_start"):
        return Standing.GONE
    return Standing.ALIVE


def end_process(facts: Mapping[str, Any]) -> Standing:
    """End the process, politely first, and wait; how it stands then."""
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        if standing(facts) is not Standing.ALIVE:
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(facts["pid"], number)
        _await_end(facts, seconds)
    return standing(facts)


def restarted_since(facts: Mapping[str, Any]) -> bool:
    """Whether the host was started again since, which ended the process."""
    boot = _boot()
    known = boot is not None and facts.get("boot") is not None
    return known and facts["boot"] != boot and facts.get("host") == socket.gethostname()


def writing_to(log: Path, command: str) -> list[dict[str, Any]]:
    """The processes with ``command`` among their arguments whose standard error is ``log``."""
    found = []
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if command.encode() in arguments and (folder / "fd" / "2").readlink() == log.resolve():
                found.append(process_facts(int(folder.name)))
    return [facts for facts in found if standing(facts) is Standing.ALIVE]


def _await_end(facts: Mapping[str, Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while standing(facts) is Standing.ALIVE and time.monotonic() < deadline:
        time.sleep(0.02)


def _boot() -> str | None:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None


def _stat(pid: int) -> list[str] | None:
    """The fields of ``stat`` behind the command's name; None when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
