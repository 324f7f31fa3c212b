"""The commands as a user types them: exit codes, and what goes where."""

import json
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mtrl_cli.config.files.places import experiments, packaged_conf
from tests.cli.played import episode, rollout
from tests.cli.processes import command, environment, mtrl, on_terminal

SECRET = "sk-3f9ab1"
POLICY = "tinker://model_0123456789ab/sampler_weights/RUN/a1/step-000012"


def test_version(tmp_path: Path) -> None:
    done = mtrl("--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mtrl ")


@pytest.mark.parametrize("name", ["train", "rollout"])
def test_help_lists_what_can_be_composed(tmp_path: Path, name: str) -> None:
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "mine.yaml").write_text("name: mine\n")
    (tmp_path / "conf" / "env" / "own.yaml").write_text("kind: openenv\n")
    out = mtrl(name, "--help", cwd=tmp_path).stdout
    assert re.search(r"^  blackjack,(.|\n)*\bmine\b", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 80
    assert re.search(r"^  server +local, tinker\b", out, re.MULTILINE)
    assert re.search(r"^  env .*\bopenenv, .*\bown\b", out, re.MULTILINE)


def test_a_dry_run_tells_what_would_happen_and_creates_nothing(tmp_path: Path) -> None:
    done = mtrl("train", "--dry-run", "group.size=4", "train.steps=3", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 steps × 20 groups × 4 trajectories = 240 episodes, 80 at once" in done.stdout
    assert "changed     group.size=4 train.steps=3" in done.stdout
    assert "started for the run (not started)" in done.stdout
    assert "snapshots: immutable; a training call sent twice is executed once" in done.stdout
    assert "server.api_key from MTRL_API_KEY: not set (optional)" in done.stdout
    assert done.stdout.endswith(
        "Dry run complete. To start it, remove --dry-run from your command.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_in_json(tmp_path: Path) -> None:
    done = mtrl("rollout", "--groups", "3", "--dry-run", "--json", f"policy={POLICY}", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert (facts["groups"], facts["group_size"], facts["policy"]) == (3, 8, POLICY)
    assert facts["evaluation"] is None
    assert (facts["server"]["snapshots"], facts["server"]["dedupes"]) == ("immutable", True)


def test_a_dry_run_without_a_needed_secret(tmp_path: Path) -> None:
    done = mtrl("train", "--dry-run", "server.api_key=${oc.env:NOT_SET_ANYWHERE}", cwd=tmp_path)
    assert done.returncode == 2
    assert "server.api_key from NOT_SET_ANYWHERE: NOT SET" in done.stdout
    assert done.stderr.startswith("error: environment variable NOT_SET_ANYWHERE is not set\n")


def test_no_output_ever_shows_a_secret(tmp_path: Path) -> None:
    copied = ("name=a-${server.api_key}", f"task.params.token={SECRET}")
    for arguments in (
        ("train", "--dry-run", *copied),
        ("train", "--dry-run", "--json", *copied),
        ("train", "--dry-run", "--debug", "group.size=0", *copied),
        ("train", f"server.api_key={SECRET}=="),
    ):
        done = mtrl(*arguments, cwd=tmp_path, MTRL_API_KEY=SECRET)
        assert SECRET not in done.stdout + done.stderr
    failed = mtrl("train", cwd=tmp_path, fake="secret", MTRL_API_KEY=SECRET)
    assert failed.stderr.startswith("error: server said: *** is not welcome\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["conf=blackjak"],
            "error: no experiment 'blackjak'\n"
            "   at: conf=blackjak\n"
            " hint: did you mean conf=blackjack? available: "
            f"{', '.join(experiments([packaged_conf()]))}\n",
        ),
        (
            ["group.size=0", "train.steps=0"],
            "error: 2 settings are wrong\n"
            "       group.size=0: group.size is 0; allowed: from 1 to 100,000\n"
            "       train.steps=0: train.steps is 0; allowed: at least 1\n",
        ),
    ],
)
def test_a_wrong_configuration_is_told_in_one_place(
    tmp_path: Path, arguments: list[str], error: str
) -> None:
    done = mtrl("train", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", error)
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_option(tmp_path: Path) -> None:
    done = mtrl("train", "--dry-rnu", cwd=tmp_path)
    assert done.returncode == 2
    assert "No such option: --dry-rnu (Possible options: --dry-run)" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = mtrl("train", "--debug", "group.size=x", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "error: group.size is a whole number, not 'x'" in done.stderr


@pytest.mark.parametrize(
    ("fake", "code", "told"),
    [
        ("finish", 0, ""),
        ("quarantine", 5, ""),
        ("fail", 1, "error: server http://h:1 refused: \\x1b[31mno\\x1b[0m\n"),
        ("usage", 2, "error: task.entrypoint: no class 'X'\n"),
        ("denied", 1, "error: /root/runs: Permission denied\n"),
        ("bug", 1, "internal error: ZeroDivisionError: division by zero (run again with"),
    ],
)
def test_exit_codes_of_runs(tmp_path: Path, fake: str, code: int, told: str) -> None:
    done = mtrl("train", cwd=tmp_path, fake=fake)
    assert done.returncode == code
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr
    if told:
        assert done.stderr.endswith("run: runs/20261129-122135-a7aa\n")


def test_a_broken_screen_does_not_break_the_run(tmp_path: Path) -> None:
    done = mtrl("train", cwd=tmp_path, fake="broken-screen")
    assert done.returncode == 0
    assert "finished: blackjack" in done.stdout
    assert done.stderr.startswith("internal error: ")


def test_a_run_on_a_pipe_prints_lines_and_a_summary(tmp_path: Path) -> None:
    done = mtrl("train", "train.steps=2", cwd=tmp_path, fake="finish", FORCE_COLOR="1")
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert "step 1/2 |" in lines[1]
    assert "| reward  0.500 | passed    - | trained   1/1 |" in lines[2]
    assert "finished: blackjack, 2 of 2 steps in 00:00:00" in lines[3]
    assert any("before -0.412 ± 0.011 → after -0.060 ± 0.012 (+0.352)" in one for one in lines)
    assert any("known: random -0.390" in one for one in lines)
    assert lines[-2].startswith("play it")
    assert lines[-1] == "report     mtrl report a7aa"


@pytest.mark.parametrize(
    ("changed", "conf"),
    [("train.steps=2", ""), ("group.size=4", "conf=runs/20261129-122135-a7aa ")],
)
def test_what_changes_nothing_of_the_games_is_played_by_the_short_command(
    tmp_path: Path, changed: str, conf: str
) -> None:
    out = mtrl("train", changed, cwd=tmp_path, fake="finish").stdout
    assert f"play it    mtrl rollout {conf}policy=a7aa@last --show 1\n" in out


def test_a_rollout_shows_as_many_of_its_games_as_it_is_asked_for(tmp_path: Path) -> None:
    """Those that failed are left out, as long as there are others."""
    texts = ("lost it", "first", "second", "third")
    games = [episode(0, n, turns=[turn(text)]) for n, text in enumerate(texts)]
    games[0] |= {"stop": "env_failure", "reward": None, "failure": "gone"}
    rollout(tmp_path / "runs", *games)
    for options in (("--show", "2"), ("--show", "2", "--quiet")):
        out = mtrl("rollout", *options, cwd=tmp_path, fake="play").stdout
        summary, first, second = out.split("\n0/")
        assert "rewards and ends" in summary
        assert first.startswith("1  step -  task t-1")
        assert "\nturn 1, 1 tokens sampled\nassistant  first\n" in first
        assert "\nassistant  second\n" in second
        assert "\x1b" not in out
    assert "turn 1" not in mtrl("rollout", cwd=tmp_path, fake="play").stdout


def turn(text: str) -> dict[str, Any]:
    return {"text": text, "tokens": 1, "calls": []}


@pytest.mark.parametrize("option", ["--json", "--multirun"])
def test_games_are_shown_of_one_run_that_is_told_as_text(tmp_path: Path, option: str) -> None:
    done = mtrl("rollout", "--show", "1", option, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--show goes with one run" in done.stderr


def test_quarantine_is_named(tmp_path: Path) -> None:
    out = mtrl("train", cwd=tmp_path, fake="quarantine").stdout
    assert "QUARANTINE 1 could not be returned and may still live:" in out
    assert "sandbox sb-1: e2b sandbox kill sb-1" in out


def test_a_rollout_ends_in_a_table_of_outcomes(tmp_path: Path) -> None:
    out = mtrl("rollout", "--groups", "2", cwd=tmp_path, fake="play").stdout
    assert " 0.00 done   1.00 done" in out
    assert "mean reward 0.500 over 4 episodes of 2 task samples; mtrl eval" in out


@pytest.mark.parametrize("extra", [{"TERM": "dumb"}, {"CI": "1"}])
def test_terminals_that_cannot_repaint_get_lines(tmp_path: Path, extra: dict[str, str]) -> None:
    code, written = on_terminal(
        command("train", fake=True),
        cwd=tmp_path,
        environ=environment(FAKE_RUN="finish", **extra),
    )
    assert code == 0
    assert "\x1b" not in written
    assert "step 2/2" in written


def test_what_a_model_wrote_cannot_steer_the_terminal(tmp_path: Path) -> None:
    code, written = on_terminal(
        command("train", fake=True),
        cwd=tmp_path,
        environ=environment(FAKE_RUN="hostile"),
        size=(24, 140),
    )
    assert code == 0
    assert "\x1b]0;owned" not in written
    assert "\x1b[31mred" not in written
    assert "\\x1b]0;owned\\x07" in written


def test_no_color_repaints_without_colour(tmp_path: Path) -> None:
    _, written = on_terminal(
        command("train", fake=True),
        cwd=tmp_path,
        environ=environment(FAKE_RUN="finish", NO_COLOR="1"),
    )
    assert "\x1b[32m" not in written
    assert "\x1b[?25l" in written


def test_serve_says_in_one_line_that_its_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = mtrl("serve", "--port", port, "--store", str(tmp_path / "store"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port: cannot listen on 127.0.0.1:{port}: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--host", "nosuch.invalid"), "error: --host: 'nosuch.invalid' cannot be resolved"),
        (("--host", "203.0.113.7"), "error: --host: 203.0.113.7 is not an address of this machine"),
        (("--store", "/dev/null"), "--store: /dev/null cannot be used as a folder: file exists"),
    ],
)
def test_serve_says_which_option_is_wrong(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    given = ("--store", str(tmp_path / "store"), *arguments)
    done = mtrl("serve", *given, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Errno" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_serve_on_a_terminal_is_for_people(tmp_path: Path) -> None:
    store = tmp_path / "store"
    started = command("serve", "--port", "0", "--store", str(store))
    ctrl_c = [(0.0, b"\x03")]
    code, told = on_terminal(started, cwd=tmp_path, environ=environment(), keys=ctrl_c)
    first, _, used, ends, *_, last = told.splitlines()
    assert re.fullmatch(rf"mtrl serve: mtrl-tiny on http://127.0.0.1:\d+, store {store}", first)
    url = first.partition(" on ")[2].partition(",")[0]
    assert used == f"mtrl train server.base_url={url}"
    assert "Ctrl-C ends it." in ends
    assert (code, last) == (0, f"mtrl serve: stopped; 0 snapshots kept in {store}")


def test_serve_answers_until_ctrl_c(tmp_path: Path) -> None:
    server = subprocess.Popen(
        command("serve", "--port", "0", "--store", str(tmp_path / "store")),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = urlsplit(json.loads(server.stdout.readline())["url"])
        assert address.hostname == "127.0.0.1"
        assert address.port is not None
        with socket.create_connection((address.hostname, address.port), timeout=10):
            pass
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=30)
    finally:
        server.kill()
    assert f"on http://127.0.0.1:{address.port}" in err
    assert "Traceback" not in err


def test_serve_needs_the_key_that_it_is_told_of(tmp_path: Path) -> None:
    done = mtrl("serve", "--api-key-env", "NOT_SET_ANYWHERE", cwd=tmp_path)
    assert done.returncode == 2
    assert "environment variable NOT_SET_ANYWHERE is not set" in done.stderr
