"""The live screen on a terminal that is resized and suspended, driven in tmux.

Skipped where tmux is missing (apt-get install tmux).
"""

import os
import shlex
import shutil
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.processes import ROOT, command

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """One window with a shell, on a server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "socket")
        shell = "env -i PATH=/usr/bin:/bin TERM=screen-256color LANG=C.UTF-8 PS1='$ ' sh -i"
        self("new-session", "-d", "-x", "100", "-y", "24", "-c", str(folder), shell)

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self._socket, *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    @property
    def screen(self) -> list[str]:
        return [line.rstrip() for line in self("capture-pane", "-p").splitlines()]

    @property
    def cursor(self) -> bool:
        """Whether the cursor is shown."""
        return self("display-message", "-p", "#{cursor_flag}").strip() == "1"

    @property
    def echoes(self) -> bool:
        """Whether the terminal echoes what is typed."""
        tty = self("display-message", "-p", "#{pane_tty}").strip()
        device = os.open(tty, os.O_RDWR | os.O_NOCTTY)
        try:
            return bool(termios.tcgetattr(device)[3] & termios.ECHO)
        finally:
            os.close(device)

    @property
    def past(self) -> str:
        """The scrollback, and the screen."""
        return self("capture-pane", "-p", "-S", "-")

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline, "\n".join(self.screen)
            time.sleep(0.1)

    def shows(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in self.screen)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    terminal = Tmux(tmp_path)
    yield terminal
    terminal("kill-server")


def start(tmux: Tmux, kind: str) -> None:
    told = " ".join(map(shlex.quote, command("train", fake=True)))
    tmux.type(f"PYTHONPATH={ROOT} FAKE_RUN={kind} {told}", "Enter")
    tmux.until(tmux.shows("Ctrl-C: let issued work"))


def test_resize_and_suspension_leave_the_terminal_sane(tmux: Tmux) -> None:
    tmux.type("for n in 1 2 3 4; do echo line-$n; done", "Enter")
    tmux.until(tmux.shows("line-4"))
    start(tmux, "stop")
    assert not tmux.cursor
    tmux.type("xyzzy", "Enter", "Enter")
    tmux("resize-window", "-x", "101", "-y", "24")
    tmux.until(lambda: any(len(line) == 101 for line in tmux.screen))
    assert [line for line in tmux.past.split() if line.startswith("line-")][-4:] == [
        f"line-{n}" for n in range(1, 5)
    ]

    tmux("resize-window", "-x", "70", "-y", "20")
    tmux.until(lambda: sum("mtrl train blackjack" in line for line in tmux.screen) >= 1)
    time.sleep(1)
    assert max(map(len, tmux.screen)) <= 70
    tmux("resize-window", "-x", "140", "-y", "30")
    tmux.until(lambda: any("turns" in line and "note" in line for line in tmux.screen))
    assert tmux.past.count("mtrl train blackjack") == 1

    tmux.type("C-z")
    tmux.until(tmux.shows("Stopped"))
    assert tmux.cursor
    tmux.type("echo still-$((40 + 2))", "Enter")
    tmux.until(tmux.shows("still-42"))
    assert any("echo still-$((40 + 2))" in line for line in tmux.screen)

    tmux.type("fg", "Enter")
    tmux.until(lambda: not tmux.cursor)
    tmux.until(lambda: not tmux.echoes)
    time.sleep(1)  # the screen is drawn, below what the shell has shown
    assert "still-42" in [line.strip() for line in tmux.screen]
    tmux.type("plugh", "Enter", "C-c")
    tmux.until(tmux.shows("STOPPING (Ctrl-C)"))
    time.sleep(0.5)  # two within 0.2 s count as one
    tmux.type("C-c")
    tmux.until(tmux.shows("cancelled: blackjack"))
    tmux.until(lambda: tmux.cursor)
    assert tmux.echoes
    before_the_shell_answered = tmux.past[: tmux.past.index("cancelled: blackjack")]
    assert "xyzzy" not in before_the_shell_answered
    assert "plugh" not in before_the_shell_answered


@pytest.mark.long
def test_a_storm_of_resizes_leaves_one_screen_and_all_lines(tmux: Tmux) -> None:
    """Lines that were drawn are broken anew at each width, and what stood above them stays."""
    tmux.type("for n in 1 2 3 4 5 6 7 8; do echo line-$n; done", "Enter")
    tmux.until(tmux.shows("line-8"))
    start(tmux, "stop")
    for width in (137, 61, 88, 140, 73, 60, 129, 95) * 4:
        tmux("resize-window", "-x", str(width), "-y", "24")
        time.sleep(0.11)
    tmux("resize-window", "-x", "100", "-y", "24")
    tmux.until(lambda: any(len(line) == 100 for line in tmux.screen))
    assert tmux.past.count("mtrl train blackjack") == 1
    assert tmux.past.count("Ctrl-C: let issued work") == 1
    assert [line for line in tmux.past.split() if line.startswith("line-")][-8:] == [
        f"line-{n}" for n in range(1, 9)
    ]
    tmux.type("C-c")
    tmux.until(tmux.shows("STOPPING (Ctrl-C)"))
    time.sleep(0.5)
    tmux.type("C-c")
    tmux.until(tmux.shows("cancelled: blackjack"))
    assert "Ctrl-C: let issued work" not in tmux.past


@pytest.mark.long
def test_in_the_background_the_terminal_is_the_shells(tmux: Tmux) -> None:
    """With ``&``, and by Ctrl-Z and ``bg``: the shell keeps its cursor, and nothing is drawn."""
    told = " ".join(map(shlex.quote, command("train", fake=True)))
    tmux.type(f"PYTHONPATH={ROOT} FAKE_RUN=drain {told} &", "Enter")
    tmux.until(tmux.shows("READY"))
    left_alone(tmux)
    tmux.type("kill %1", "Enter")
    tmux.until(tmux.shows("cancelled: blackjack"))
    assert "stopping (SIGTERM)" in tmux.past

    tmux.type("clear", "Enter")
    tmux.until(lambda: not tmux.shows("cancelled")())
    start(tmux, "drain")
    tmux.type("C-z")
    tmux.until(tmux.shows("Stopped"))
    tmux.type("clear; bg", "Enter")
    tmux.until(lambda: not tmux.shows("Stopped")())
    left_alone(tmux)
    tmux.type("fg", "Enter")
    tmux.until(tmux.shows("Ctrl-C: let issued work"))
    tmux.until(lambda: not tmux.cursor and not tmux.echoes)
    tmux.type("C-c")
    tmux.until(tmux.shows("cancelled: blackjack"))
    tmux.until(lambda: tmux.cursor and tmux.echoes)


def left_alone(tmux: Tmux) -> None:
    """The shell answers, and no drawing comes for as long as several take."""
    tmux.type("echo shell-$((40 + 2))", "Enter")
    tmux.until(tmux.shows("shell-42"))
    time.sleep(1)
    assert tmux.cursor
    assert tmux.echoes
    assert not tmux.shows("Ctrl-C: let issued work")()
