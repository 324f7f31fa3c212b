"""What ``mtrl show`` proposes is accepted: for every state of a run, each command is typed."""

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.cli.running.live_file import NAME
from mtrl_cli.display.plan import DisplayPlan
from mtrl_cli.display.snapshot import to_record
from mtrl_cli.display.state import RunState
from mtrl_cli.display.text import run_tail
from mtrl_cli.rollout.events import GroupFinished, GroupStarted, MemberFinished
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.training.events import PhaseStarted, RunStarted
from tests.cli.played import rollout
from tests.cli.processes import mtrl
from tests.cli.world import World

COMMANDS = ("watch", "end it", "resume", "publish", "play it", "read it", "check it", "")
"""The labels of what can be typed; what a lost run held is returned by a command without one."""

DONE = {"check it": (0, 1), "": (0, 5)}
"""Exit codes of what was done: a check may find something, a cancelled run may leave something."""

Change = Callable[[Path], None]


def told(**facts: Any) -> Change:
    def change(run: Path) -> None:
        state = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(state | facts))

    return change


def commits(number: int) -> Change:
    """Only the first ones."""

    def change(run: Path) -> None:
        lines = (run / "commits.jsonl").read_text().splitlines(keepends=True)
        (run / "commits.jsonl").write_text("".join(lines[:number]))
        told(step=max(number - 1, 0), evaluation={})(run)
        if number < 2:
            shutil.rmtree(run / "trajectories")
            (run / "metrics.jsonl").write_text("")

    return change


def older(run: Path) -> None:
    """Written when the share of passed episodes was called otherwise."""
    told(status="cancelled")(run)
    metrics = (run / "metrics.jsonl").read_text()
    assert '"pass_rate"' in metrics
    (run / "metrics.jsonl").write_text(metrics.replace('"pass_rate"', '"solved"'))


def dead(run: Path) -> None:
    """Its process was killed."""
    told(status="running", ended=None, **{**process_facts(os.getpid()), "pid": 2**22 - 1})(run)


STATES: dict[str, tuple[Change, ...]] = {
    "finished": (),
    "cancelled": (told(status="cancelled", reason="stopped by Ctrl-C"),),
    "failed": (told(status="failed", reason="server gone"),),
    "failed at step 0": (told(status="failed", reason="all groups failed"), commits(1)),
    "failed at start-up": (told(status="failed", reason="no server"), commits(0)),
    "of an older mtrl": (older,),
    "lost": (dead,),
    "lost at step 0": (dead, commits(1)),
    "quarantined": (told(borrows={"held": 0, "quarantined": ["sandbox sb-1: kill it"]}),),
}


def proposed(text: str) -> dict[str, str]:
    """Label and command of each line that can be typed."""
    rows = ((line[:11].strip(), line[11:]) for line in text.splitlines())
    return {label: said for label, said in rows if label in COMMANDS and said.startswith("mtrl ")}


def typed(label: str, command: str, cwd: Path, home: Path) -> tuple[int, str]:
    program, *arguments = shlex.split(command.replace("NAME", "a-name"))
    assert program == "mtrl"
    if label in ("resume", "play it"):
        arguments.append("--dry-run")
    done = mtrl(*arguments, cwd=cwd, MTRL_HOME=str(home))
    return done.returncode, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_every_command_that_is_proposed_is_accepted(
    trained: World, tmp_path: Path, state: str
) -> None:
    run = shutil.copytree(trained.run(trained.first), tmp_path / "runs" / trained.first)
    for change in STATES[state]:
        change(run)
    done = mtrl("show", "last", cwd=tmp_path, MTRL_HOME=str(trained.home))
    assert done.returncode == 0, done.stderr
    found = proposed(done.stdout)
    assert "check it" in found
    for label, command in found.items():
        code, errors = typed(label, command, tmp_path, trained.home)
        assert code in DONE.get(label, (0,)), (command, errors)


def test_a_run_that_has_trained_nothing_is_not_to_be_published(
    trained: World, tmp_path: Path
) -> None:
    run = shutil.copytree(trained.run(trained.first), tmp_path / "runs" / trained.first)
    for change in STATES["failed at step 0"]:
        change(run)
    found = proposed(mtrl("show", "last", cwd=tmp_path).stdout)
    assert set(found) == {"resume", "check it"}


@pytest.mark.long
def test_a_server_that_keeps_no_snapshots_and_leaks_gradients(
    trained: World, tmp_path: Path
) -> None:
    """SkyRL's tx is one. Nothing can be named there, and only ``--force`` goes on."""
    run = shutil.copytree(trained.run(trained.first), tmp_path / "runs" / trained.first)
    recorded = json.loads((run / "run.json").read_text())["server"]
    assert recorded == {"snapshots": "immutable", "leaks_gradients": False}
    told(status="failed", server={"snapshots": "live", "leaks_gradients": True})(run)
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if json.loads(line).get("kind") == "optim_step")
    step = json.loads(lines[last])["key"]
    kept = [line for line in lines if json.loads(line)["key"] != step]
    (run / "ledger.jsonl").write_text("".join(kept))
    text = mtrl("show", "last", cwd=tmp_path).stdout
    found = proposed(text)
    assert set(found) == {"play it", "resume", "read it", "check it"}
    assert found["resume"] == f"mtrl train --resume {run_tail(run.name)} --force"
    assert "were not stepped: start the server again, then:" in text


def test_of_a_run_in_its_first_evaluation_the_phase_is_told(tmp_path: Path) -> None:
    run = rollout(tmp_path / "runs", kind="train", status="running", steps=150, step=0)
    told(**process_facts(os.getpid()))(run)
    state = RunState(DisplayPlan("train blackjack", games=6000), 0.0)
    for event in (
        RunStarted(run.name, str(run), "blackjack", 150, "local", {}),
        PhaseStarted("evaluation"),
        GroupStarted(0, "s", 1, "base", 0, "eval"),
        MemberFinished(0, 0, "done", -0.5, 1, 60, 0, stream="eval"),
        GroupFinished(0, -0.5, "complete", "eval"),
    ):
        state.apply(event, 0.0)
    (run / NAME).write_text(json.dumps(to_record(state, 1.0)))
    lines = mtrl("show", "last", cwd=tmp_path).stdout.splitlines()
    assert "now        evaluation before: 1/6,000 games, -0.500 so far" in lines
    assert "steps      0 of 150 committed" in lines
    assert set(proposed("\n".join(lines))) == {"watch", "end it"}
    os.utime(run / NAME, (time.time() - 60, time.time() - 60))  # of another moment
    assert "now " not in mtrl("show", "last", cwd=tmp_path).stdout
