"""What is typed while a screen is repainted is not echoed, and the keyboard is given back whatever
handled signal ends it. On a pseudo-terminal, whose settings are asked from outside."""

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mtrl_cli.runs.processes import process_facts
from tests.cli.played import episode, rollout
from tests.cli.processes import command, environment

LONGEST = 30


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, folder: Path, argv: list[str], fake: str) -> None:
        # This end stays open: the settings can be asked for when the command has ended.
        self.end, self.device = os.openpty()
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment(FAKE_RUN=fake),
            preexec_fn=partial(os.login_tty, self.device),
        )
        self.text = bytearray()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while block := os.read(self.end, 65536):
                self.text += block
        except OSError:
            return

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.device)[3] & termios.ECHO)

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST
        while not what():
            assert time.monotonic() < deadline, self.text.decode("utf-8", "replace")
            time.sleep(0.02)

    def shows(self, text: str) -> Callable[[], bool]:
        return lambda: text.encode() in self.text

    def quiet(self) -> "Terminal":
        """Wait for the live screen."""
        self.until(lambda: not self.echoes)
        return self

    def ended(self) -> int:
        """Wait for the end of the command; the exit code, below 0 a signal."""
        return self.process.wait(LONGEST)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.device)
        os.close(self.end)


Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Terminal] = []

    def start(fake: str, *argv: str) -> Terminal:
        train = command("train", "train.steps=2", fake=True)
        made.append(Terminal(tmp_path, list(argv) or train, fake))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_what_is_typed_leaves_nothing_in_the_scrollback(start: Start) -> None:
    terminal = start("drain").quiet()
    os.write(terminal.end, b"\nxyzzy\n\n")
    time.sleep(0.5)  # an echo would have been drawn
    terminal.process.terminate()
    assert terminal.ended() == 143
    assert terminal.echoes
    assert b"xyzzy" not in terminal.text
    waiting = fcntl.ioctl(terminal.device, termios.FIONREAD, b"\0" * 4)
    assert int.from_bytes(waiting, sys.byteorder) == 0  # a shell would execute it


@pytest.mark.parametrize(
    ("fake", "signals", "code"),
    [
        ("blocked", (signal.SIGINT, signal.SIGINT, signal.SIGINT), 130),
        pytest.param("stop", (signal.SIGINT, signal.SIGINT), 130, marks=pytest.mark.long),
        pytest.param("stop", (signal.SIGQUIT,), -signal.SIGQUIT, marks=pytest.mark.long),
        pytest.param("breaks", (signal.SIGTERM,), 1, marks=pytest.mark.long),
    ],
)
def test_the_keyboard_is_given_back_whatever_ends_the_run(
    start: Start, fake: str, signals: tuple[signal.Signals, ...], code: int
) -> None:
    terminal = start(fake).quiet()
    for number in signals:
        terminal.process.send_signal(number)
        time.sleep(0.3)  # two within 0.2 s count as one
    assert terminal.ended() == code
    assert terminal.echoes
    assert terminal.text.rfind(b"\x1b[?25h") > terminal.text.rfind(b"\x1b[?25l")


@pytest.mark.long
def test_a_run_in_the_background_leaves_the_keyboard_to_the_shell(start: Start) -> None:
    """As a job of ``timeout`` or of a shell: who changes the settings there is stopped."""
    told = shlex.join(command("train", "train.steps=2", fake=True))
    terminal = start("finish", "/bin/sh", "-c", f"set -m; {told} & wait $!; echo code=$?")
    terminal.until(terminal.shows("code=0"))
    assert terminal.ended() == 0


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_watcher_gives_the_keyboard_back(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    here = process_facts(os.getpid())  # a run of this process
    rollout(tmp_path / "runs", episode(0, 0), status="running", **here)
    terminal = start("", *command("watch", "last")).quiet()
    terminal.process.send_signal(number)
    assert terminal.ended() == 130
    assert terminal.echoes
    assert terminal.text.rfind(b"\x1b[?25h") > terminal.text.rfind(b"\x1b[?25l")
