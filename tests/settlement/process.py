"""`mtrl` as a process of its own, on files or on a terminal; its signals come from the test."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cli.processes import command, environment

_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)

_SHELL = (
    "import fcntl, os, signal, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
    "job = os.fork()\n"
    "if job == 0:\n"
    "    os.setpgid(0, 0)\n"
    "    os.tcsetpgrp(0, os.getpid())\n"
    "    signal.signal(signal.SIGTTOU, signal.SIG_DFL)\n"
    "    os.execv(sys.argv[1], sys.argv[1:])\n"
    "while os.WIFSTOPPED(status := os.waitpid(job, os.WUNTRACED)[1]):\n"
    "    pass\n"
    "os._exit(os.waitstatus_to_exitcode(status))\n"
)
"""A shell with job control, reduced to one job: only a job can be put to sleep with Ctrl-Z."""

APART = 0.3
"""Seconds between two signals that count as two."""


class Running:
    """One `mtrl` in flight. Its output goes to files, or to a terminal that is its own."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        environ: Mapping[str, str],
        terminal: bool = False,
        shell: bool = False,
        stdout: int | None = None,
    ) -> None:
        self.cwd = cwd
        self._out, self._err = cwd / "stdout", cwd / "stderr"
        env = environment(**environ)
        self.terminal: int | None = None
        if terminal:
            self.terminal, inner = pty.openpty()
            fcntl.ioctl(inner, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")
            launcher = _SHELL if shell else _TAKE_TERMINAL
            take = [sys.executable, "-c", launcher, *command(*arguments)]
            self.process = subprocess.Popen(
                take, cwd=cwd, env=env, stdin=inner, stdout=inner, stderr=inner,
                start_new_session=True,
            )  # fmt: skip
            os.close(inner)
            threading.Thread(target=self._read, args=(self.terminal,), daemon=True).start()
            return
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command(*arguments), cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    @property
    def job(self) -> int:
        """The process id of `mtrl` below the shell."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        """Wait for something that happens while the process lives."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"ended before {what}: {self.out[-2000:]}{self.err[-2000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} in {seconds:g} s: {self.out[-2000:]}{self.err}")
            time.sleep(0.01)

    def says(self, *texts: str) -> None:
        """Wait until it has said one of these on standard output."""
        self.wait(lambda: any(text in self.out for text in texts), repr(texts))

    def wait_for_output(self, text: str, seconds: float = 30.0) -> None:
        """Wait until it has been read from the terminal, also after the end of the process."""
        deadline = time.monotonic() + seconds
        while text not in self.out:
            assert time.monotonic() < deadline, f"no {text!r}: {self.out[-2000:]!r}"
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close_terminal(self) -> None:
        assert self.terminal is not None
        os.close(self.terminal)
        self.terminal = None

    def code(self, seconds: float = 120.0) -> int:
        """Its exit code, once it has ended; it must end in time."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Whatever happens, nothing is left."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError, IndexError):
                os.kill(self.job, signal.SIGKILL)  # below a shell
            self.process.kill()
            self.process.wait()
        if self.terminal is not None:
            self.close_terminal()

    def _read(self, terminal: int) -> None:
        with self._out.open("wb", buffering=0) as out:
            while True:
                try:
                    block = os.read(terminal, 65536)
                except OSError:
                    return
                if not block:
                    return
                out.write(block)
