"""`--json` and `--quiet`: for scripts."""

import json
import signal
from pathlib import Path

from tests.cli.processes import Running, mtrl


def test_json_prints_events_and_nothing_else_on_standard_output(tmp_path: Path) -> None:
    done = mtrl("train", "--json", cwd=tmp_path, fake="finish")
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "run_started"
    assert names[-1] == "run_finished"
    assert "turn_sampled" not in names
    steps = [event for event in events if event["event"] == "step_finished"]
    assert [step["step"] for step in steps] == [1, 2]
    assert steps[0]["metrics"]["reward"] == 0.5
    assert all(event["time"] > 1e9 for event in events)
    assert events[-1]["after"]["mean"] == -0.06
    assert "finished: blackjack, 2 of 2 steps" in done.stderr


def test_what_an_environment_prints_does_not_get_among_the_events(tmp_path: Path) -> None:
    done = mtrl("train", "--json", cwd=tmp_path, fake="chatty")
    assert all(json.loads(line) for line in done.stdout.splitlines())
    assert "printed by the environment" in done.stderr
    assert "printed by a child" in done.stderr


def test_every_number_is_finite(tmp_path: Path) -> None:
    done = mtrl("train", "--json", cwd=tmp_path, fake="not-finite")
    (step,) = [line for line in done.stdout.splitlines() if "step_finished" in line]
    assert json.loads(step)["metrics"] == {"reward": 0.5, "loss": None, "kl": None}
    assert "NaN" not in done.stdout
    assert "Infinity" not in done.stdout


def test_a_failure_is_an_event_too_and_hides_secrets(tmp_path: Path) -> None:
    done = mtrl("train", "--json", cwd=tmp_path, fake="secret", MTRL_API_KEY='sk-"3f9ab1')
    assert done.returncode == 1
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "failed"
    assert (last["error"], last["exit_code"]) == ("server said: *** is not welcome", 1)
    assert "3f9ab1" not in done.stdout + done.stderr


def test_a_stop_is_an_event(tmp_path: Path) -> None:
    run = Running("train", "--json", "--quiet", cwd=tmp_path, fake="drain").ready()
    run.signal(signal.SIGTERM)
    code, out, _ = run.end()
    assert code == 143
    (stopping,) = [json.loads(line) for line in out.splitlines() if '"stopping"' in line]
    assert (stopping["stage"], stopping["cause"]) == (1, "SIGTERM")


def test_quiet_prints_the_summary_only(tmp_path: Path) -> None:
    done = mtrl("train", "--quiet", cwd=tmp_path, fake="finish")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("finished: blackjack, 2 of 2 steps")
    failed = mtrl("train", "-q", cwd=tmp_path, fake="fail")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: server http://h:1 refused")


def test_quiet_and_json_go_together(tmp_path: Path) -> None:
    done = mtrl("rollout", "--groups", "2", "--quiet", "--json", cwd=tmp_path, fake="play")
    names = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert names.count("group_finished") == 2
    assert done.stderr.startswith("finished: ")
