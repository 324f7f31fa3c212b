"""Processes by name: which one a record means, whether it lives, how it is ended.

A pid alone names nothing, because it is given away again. A process is named by the kernel's boot
id, the pid namespace, the pid and the start time (field 22 of ``/proc/PID/stat``). Where boot or
namespace differ from ours nothing can be said from here: the process is *unseen*. Without /proc
only one thing is sure: a pid that nobody has is gone.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from enum import Enum
from functools import cache
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
    if not isinstance(pid, int):
        return Standing.UNSEEN
    if boot is None:
        here = facts.get("boot") is None and facts.get("host") == socket.gethostname()
        return Standing.UNSEEN if not here or _exists(pid) else Standing.GONE
    if facts.get("boot") != boot or facts.get("pid_ns") != _pid_namespace():
        return Standing.UNSEEN
    stat = _stat(pid)
    if stat is None or stat[_STATE] in _DEAD or int(stat[_START]) != facts.get("pid_start"):
        return Standing.GONE
    return Standing.ALIVE


def stopped(facts: Mapping[str, Any]) -> bool:
    """Whether the process is there and stopped, as by Ctrl-Z: it runs no code until it goes on."""
    return standing(facts) is Standing.ALIVE and (_stat(facts["pid"]) or ["X"])[_STATE] == "T"


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


def writing_to(log: Path, command: str) -> list[dict[str, Any]] | None:
    """The processes with ``command`` among their arguments whose standard error is ``log``; None
    where processes cannot be listed."""
    if _boot() is None:
        return None
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


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _boot() -> str | None:
    return _our_kernel(_PROC)[0]


def _pid_namespace() -> str | None:
    return _our_kernel(_PROC)[1]


@cache
def _our_kernel(proc: Path) -> tuple[str | None, str | None]:
    """Its boot id and our pid namespace: for a process they do not change."""
    boot = namespace = None
    with contextlib.suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = str((proc / "self/ns/pid").readlink())
    return boot, namespace


def _stat(pid: int) -> list[str] | None:
    """The fields of ``stat`` behind the command's name; None when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
