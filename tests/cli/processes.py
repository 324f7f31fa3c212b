"""Real processes of the command line, on pipes and on a terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FAKE = Path(__file__).with_name("fake_mtrl.py")
ROOT = Path(__file__).resolve().parents[2]


def environment(**extra: str) -> dict[str, str]:
    """The user's environment without what changes a screen or holds a secret."""
    dropped = {"CI", "NO_COLOR", "FORCE_COLOR", "MTRL_API_KEY", "TINKER_API_KEY", "COLUMNS"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return kept | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **extra}


def command(*arguments: str, fake: bool = False) -> list[str]:
    start = [str(FAKE)] if fake else ["-m", "mtrl_cli"]
    return [sys.executable, *start, *arguments]


def mtrl(
    *arguments: str, cwd: Path, fake: str | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, on pipes."""
    environ = environment(**extra, **({"FAKE_RUN": fake} if fake else {}))
    return subprocess.run(
        command(*arguments, fake=fake is not None),
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Running:
    """A command in flight, on pipes."""

    def __init__(self, *arguments: str, cwd: Path, fake: str, stdout: int | None = None) -> None:
        self.process = subprocess.Popen(
            command(*arguments, fake=True),
            cwd=cwd,
            env=environment(FAKE_RUN=fake),
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> "Running":
        """Wait until the fake run is in flight and its signals are handled."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line == "READY\n", line
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, apart from the last one as two key presses are."""
        self.process.send_signal(number)
        time.sleep(0.3)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out or "", err


def on_terminal(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    size: tuple[int, int] = (24, 80),
    keys: Sequence[tuple[float, bytes]] = (),
) -> tuple[int, str]:
    """Run a command on a pseudo-terminal: its exit code and everything that it wrote.

    ``keys`` are typed at the given seconds after the screen first showed something.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execve(arguments[0], list(arguments), dict(environ))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    written, typed, started = bytearray(), list(keys), None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        readable, _, _ = select.select([terminal], [], [], 0.05)
        if readable:
            try:
                block = os.read(terminal, 65536)
            except OSError:
                break
            if not block:
                break
            written += block
            started = started or time.monotonic()
        if started and typed and time.monotonic() - started >= typed[0][0]:
            os.write(terminal, typed.pop(0)[1])
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), written.decode("utf-8", "replace")
