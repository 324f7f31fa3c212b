"""An event loop that a task's code holds up: told where, while it stands still."""

import json
import os
import re
import signal
import subprocess
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.cli.running import blocked
from tests.cli.processes import FAKE, command, environment, mtrl, on_terminal

HELD = re.compile(rf"nothing has moved for \d+ s: {re.escape(str(FAKE))}:\d+ in _holds_up holds up")


def test_it_is_told_once_and_before_it_ends(tmp_path: Path) -> None:
    done = mtrl("train", cwd=tmp_path, fake="held-up", PATIENCE="0.4", SECONDS="2.5")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    (told,) = [line for line in lines if HELD.search(line)]
    assert "WARN" in told
    assert lines.index(told) < next(at for at, line in enumerate(lines) if "step 1/2" in line)


WAITS = """
def waits(made):
    watch = made()
    watch.start()
    time.sleep(2)
    watch.close()
"""


def test_where_nothing_is_the_users_own_an_installed_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked, "PATIENCE", 0.3)
    file = f"{sysconfig.get_path('purelib')}/oddpkg/task.py"
    names: dict[str, Any] = {"time": time}
    exec(compile(WAITS, file, "exec"), names)
    told: list[str] = []
    thread = threading.Thread(target=names["waits"], args=(lambda: blocked.LoopWatch(told.append),))
    thread.start()
    thread.join()
    [line] = told
    assert f"{file}:5 in waits holds up every episode" in line


def test_a_script_hears_of_it_too(tmp_path: Path) -> None:
    done = mtrl("train", "--json", cwd=tmp_path, fake="held-up", PATIENCE="0.4", SECONDS="2")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [HELD.search(one["text"]) is not None for one in events if one["event"] == "notice"] == [
        True
    ]


def test_the_live_screen_is_drawn_by_the_watch(tmp_path: Path) -> None:
    code, seen = on_terminal(
        command("train", fake=True),
        cwd=tmp_path,
        environ=environment(FAKE_RUN="held-up", PATIENCE="0.3", SECONDS="3"),
        size=(24, 300),
    )
    assert code == 0
    assert HELD.search(seen)
    assert seen.index("nothing has moved") < seen.index("step 1/2")


def test_a_loop_that_moves_and_a_process_that_slept_are_no_news(tmp_path: Path) -> None:
    run = subprocess.Popen(
        command("train", fake=True),
        cwd=tmp_path,
        env=environment(FAKE_RUN="drain", PATIENCE="1.5"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    assert run.stderr.readline() == "READY\n"
    os.kill(run.pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(run.pid, signal.SIGCONT)
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert "nothing has moved" not in out
    assert "cancelled: blackjack" in out
