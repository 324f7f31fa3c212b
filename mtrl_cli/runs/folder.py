"""A run's folder: created once, private to the user, written by the run alone.

``run.json`` is the one document that changes; everything else is written once or appended.
The folder's layout is described in docs/run-folder.md.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrl_cli.runs.files import RecordFile, write_document
from mtrl_cli.runs.ledger import Ledger

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def new_run_id() -> str:
    """A sortable name with a random tail, such as ``20261129-122135-a7aa``."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class RunFolder:
    """The folder of one run, and the files that a run appends to."""

    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        self.path = path
        self._state = state
        self.ledger = Ledger(path / "ledger.jsonl")
        self.groups = RecordFile(path / "groups.jsonl")
        self.commits = RecordFile(path / "commits.jsonl")
        self.metrics = RecordFile(path / "metrics.jsonl")
        self._write()

    @classmethod
    def create(cls, parent: Path, experiment: str, kind: str, config_yaml: str) -> "RunFolder":
        """Create the folder of a new run under ``parent``, and point ``latest`` at it.

        ``config_yaml`` is the composed experiment with its secrets masked.
        """
        run = new_run_id()
        path = parent / run
        path.mkdir(parents=True, mode=0o700)
        write_document(path / "config.yaml", config_yaml)
        (path / "trajectories").mkdir(mode=0o700)
        folder = cls(path, _first_state(run, experiment, kind))
        _point_latest(parent, run)
        return folder

    @property
    def id(self) -> str:
        return str(self._state["id"])

    @property
    def attempt(self) -> int:
        return int(self._state["attempt"])

    def update(self, **facts: Any) -> None:
        """Change facts of ``run.json``."""
        self._state.update(facts)
        self._write()

    def evaluated(self, when: str, figures: Mapping[str, Any]) -> None:
        """Record an evaluation, ``before`` or ``after`` training."""
        self.update(evaluation={**self._state["evaluation"], when: dict(figures)})

    def end(self, status: str, reason: str | None) -> None:
        """Record the end and close the files."""
        self.update(status=status, reason=reason, ended=round(time.time(), 3))
        for file in (self.ledger, self.groups, self.commits, self.metrics):
            file.close()

    def _write(self) -> None:
        write_document(self.path / "run.json", json.dumps(self._state, indent=2) + "\n")


def _first_state(run: str, experiment: str, kind: str) -> dict[str, Any]:
    return {
        "id": run,
        "experiment": experiment,
        "kind": kind,
        "status": "running",
        "reason": None,
        "attempt": 1,
        "host": socket.gethostname(),
        "boot": _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else None,
        "pid": os.getpid(),
        "pid_start": _process_start(),
        "created": round(time.time(), 3),
        "ended": None,
        "policy": None,
        "evaluation": {},
    }


def _process_start() -> int | None:
    """Field 22 of /proc/self/stat: with the pid, it names this process and no later one."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return None
    return int(stat.read_text().rpartition(")")[2].split()[19])


def _point_latest(parent: Path, run: str) -> None:
    beside = parent / f".latest-{run}"
    beside.symlink_to(run)
    beside.replace(parent / "latest")
