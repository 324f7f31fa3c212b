"""Real signals to real processes: drain, stop, abort, and the loss of the terminal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.processes import Running, command, environment, on_terminal

SHOW_CURSOR = "\x1b[?25h"


@pytest.mark.parametrize(
    ("number", "code", "cause"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")],
)
def test_the_first_signal_drains(
    tmp_path: Path, number: signal.Signals, code: int, cause: str
) -> None:
    run = Running("train", cwd=tmp_path, fake="drain").ready()
    run.signal(number)
    returned, out, err = run.end()
    assert returned == code
    assert f"stopping ({cause}): nothing new starts; 1 group settles (at most 60s)." in out
    assert "cancelled: blackjack, 2 of 2 steps" in out
    assert f": stopped by {cause}\n" in out
    assert "Traceback" not in err


def test_the_second_signal_stops(tmp_path: Path) -> None:
    run = Running("train", cwd=tmp_path, fake="stop").ready()
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGTERM)
    returned, out, _ = run.end()
    assert returned == 143
    assert "stopping now (SIGTERM): work in flight is dropped" in out


def test_a_signal_delivered_twice_counts_once(tmp_path: Path) -> None:
    run = Running("train", cwd=tmp_path, fake="drain").ready()
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    run.process.send_signal(signal.SIGINT)
    returned, out, _ = run.end()
    assert returned == 130
    assert "stopping now" not in out


def test_the_third_signal_leaves_at_once_even_when_the_loop_is_blocked(tmp_path: Path) -> None:
    run = Running("train", cwd=tmp_path, fake="blocked").ready()
    started = time.monotonic()
    for _ in range(3):
        run.signal(signal.SIGINT)
    returned, _, err = run.end()
    assert returned == 130
    assert time.monotonic() - started < 10
    assert "aborted: 0 groups in flight dropped; not returned: sandbox 2" in err
    assert "runs/20261129-122135-a7aa/ledger.jsonl names what may still live" in err


def test_a_dead_reader_does_not_end_the_drain(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    run = Running("train", cwd=tmp_path, fake="drain", stdout=writer)
    os.close(writer)
    os.close(reader)  # as when `| tee log` dies of the same Ctrl-C
    run.ready()
    run.signal(signal.SIGINT)
    returned, _, err = run.end()
    assert returned == 130
    assert "BrokenPipe" not in err


def test_a_closed_terminal_drains(tmp_path: Path) -> None:
    run = Running("train", cwd=tmp_path, fake="drain").ready()
    run.signal(signal.SIGHUP)
    returned, out, _ = run.end()
    assert returned == 129
    assert "stopping (closing the terminal)" in out


def test_ctrl_c_during_imports_is_quiet(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal, types\n"
        "class Slow:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'mtrl_cli.cli.app':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from mtrl_cli.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_a_hanging_thread_does_not_keep_the_process(tmp_path: Path) -> None:
    started = time.monotonic()
    returned, out, _ = Running("train", cwd=tmp_path, fake="hanging-thread").end()
    assert returned == 0
    assert "finished: blackjack" in out
    assert time.monotonic() - started < 30


def test_keys_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C twice on the live screen: both stages are shown, and the cursor comes back."""
    code, written = on_terminal(
        command("train", fake=True),
        cwd=tmp_path,
        environ=environment(FAKE_RUN="stop"),
        keys=[(1.0, b"\x03"), (1.6, b"\x03")],
    )
    assert code == 130
    assert "STOPPING (Ctrl-C): 1 group settles, none starts" in written
    assert "STOPPING NOW (Ctrl-C)" in written
    assert SHOW_CURSOR in written[written.rindex("STOPPING NOW") :]


def test_an_abort_on_a_terminal_gives_the_cursor_back(tmp_path: Path) -> None:
    code, written = on_terminal(
        command("train", fake=True),
        cwd=tmp_path,
        environ=environment(FAKE_RUN="blocked"),
        keys=[(1.0, b"\x03"), (1.6, b"\x03"), (2.2, b"\x03")],
    )
    assert code == 130
    assert SHOW_CURSOR in written
    assert "aborted: 0 groups in flight dropped" in written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_words_changes_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Until the process is gone, which takes a moment, its own exit code stands."""
    with Running("train", cwd=tmp_path, fake="finish").process as run:
        assert run.stdout
        assert run.stderr
        assert any(line.startswith("finished: ") for line in run.stdout)
        while run.poll() is None:
            run.send_signal(number)
        assert (run.returncode, run.stderr.read()) == (0, "")


def test_a_signal_while_the_interpreter_ends_is_quiet(tmp_path: Path) -> None:
    asked = command("runs", "--json")
    with subprocess.Popen(
        asked, cwd=tmp_path, env=environment(), stdout=-1, stderr=-1, text=True
    ) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.readline()
        while run.poll() is None:
            run.send_signal(signal.SIGINT)
        assert (run.returncode in (0, 130), run.stderr.read()) == (True, "")


def test_ctrl_c_in_the_moment_in_which_serve_becomes_the_server_is_quiet(tmp_path: Path) -> None:
    asked = command("serve", "--port", "0", "--store", str(tmp_path / "store"))
    with subprocess.Popen(asked, env=environment(), stdout=-1, stderr=-1, text=True) as run:
        line = Path(f"/proc/{run.pid}/cmdline")
        while b"mtrl_cli.local" not in line.read_bytes():
            pass
        run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=60) == ("", "")
    assert run.returncode == 130
