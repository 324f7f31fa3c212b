"""Processes of `mtrl` that begin in a moment, and that kill themselves at a place.

    python -m tests.exactly_once.zygote

imports once what a run needs, and forks for every order that it reads, a line of JSON on standard
input: a process that forks the `mtrl` under test, waits for it, and leaves its exit code in a
file, negative for a signal. Nothing here has threads, so a fork is like a process that was started
anew.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.cli.processes import environment
from tests.exactly_once.lines import Place, tear, watch
from tests.exactly_once.play import Setting, attempt, compose_once

PATIENCE = 150.0
"""Seconds that a run of this size may take on a busy machine."""
_ENDED = "ended"

_IMPORTED = (
    "aiohttp",
    "httpx_aiohttp",
    "hydra",
    "renderers",
    "tokenizers",
    "mtrl_cli.assembly",
    "mtrl_cli.cli.running.resume",
    "mtrl_cli.display.live",
    "mtrl_cli.testing.counted_env",
    "mtrl_cli.testing.counted_world",
    "mtrl_cli.training.run",
)


class Zygote:
    """The other side. Any thread may use it; processes run side by side."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        quiet = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.exactly_once.zygote"],
            env=environment(**quiet, **environ),
            stdin=subprocess.PIPE,
            text=True,
        )

    def run(self, cwd: Path, *arguments: str, die: Place | None = None) -> int:
        """Run ``mtrl`` with these arguments to its end; its exit code, -9 where it was killed.

        What it says goes to ``cwd/said``. One at a time in a folder.
        """
        return self._order(cwd, die, arguments=arguments)

    def begin(self, cwd: Path, setting: Setting, die: Place | None = None) -> int:
        """Begin a run of ``setting`` in a process like that of ``mtrl train``, without composing
        its configuration once more."""
        return self._order(cwd, die, setting=[setting.url, str(setting.runs)])

    def _order(self, cwd: Path, die: Place | None, **what: Any) -> int:
        place = None if die is None else [die.label, die.number, die.when]
        order = json.dumps({"cwd": str(cwd), "die": place, **what})
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        ended, deadline = cwd / _ENDED, time.monotonic() + PATIENCE
        while not ended.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{what} has not ended")
            time.sleep(0.005)
        code = int(ended.read_text())
        ended.unlink()
        return code

    def close(self) -> None:
        self._process.communicate()


def _wait_for_child(order: Mapping[str, Any]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        _child(order)
    _, status = os.waitpid(child, 0)
    cwd = Path(order["cwd"])
    beside = cwd / f"{_ENDED}.tmp"
    beside.write_text(str(os.waitstatus_to_exitcode(status)))
    beside.rename(cwd / _ENDED)
    os._exit(0)


def _child(order: Mapping[str, Any]) -> NoReturn:
    cwd = Path(order["cwd"])
    os.chdir(cwd)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    said = os.open(cwd / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, target in ((nowhere, 0), (said, 1), (said, 2)):
        os.dup2(descriptor, target)
    if order["die"] is not None:
        _die_at(cwd / "runs", Place(*order["die"]))
    code = _begin(*order["setting"]) if "setting" in order else _mtrl(order["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _die_at(runs: Path, place: Place) -> None:
    def watcher(now: Place, file: Path, record: Mapping[str, Any]) -> None:
        if now == place:
            if now.when == "torn":
                tear(file, record)
            os.kill(os.getpid(), signal.SIGKILL)

    watch(runs, watcher)


def _begin(url: str, runs: str) -> int:
    failed = attempt(Setting(url, Path(runs)), None)
    if failed is not None:
        sys.stderr.write(failed + "\n")
    return int(failed is not None)


def _mtrl(arguments: Sequence[str]) -> int:
    from mtrl_cli.__main__ import main

    sys.argv = ["mtrl", *arguments]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _serve() -> None:
    for name in _IMPORTED:
        __import__(name)
    compose_once()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            _wait_for_child(json.loads(line))


if __name__ == "__main__":
    _serve()
