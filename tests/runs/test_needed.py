"""Which snapshots of a store the run folders need."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.runs.commits import Commit, rollback
from mtrl_cli.runs.files import RecordFile
from mtrl_cli.runs.needed import Need, Stored, needs, stores_of
from mtrl_cli.runs.policies import write_policy
from mtrl_cli.runs.processes import process_facts
from mtrl_cli.runs.registry import list_runs

RUN = "20261129-122135-a7aa"


def policy(step: int, attempt: int = 1, run: str = RUN) -> str:
    return f"tinker://model_{attempt:012x}/sampler_weights/{run}/a{attempt}/step-{step:06d}"


def state(step: int, attempt: int = 1) -> str:
    return policy(step, attempt).replace("sampler_weights", "weights")


def a_run(runs: Path, status: str = "finished", name: str = RUN, **facts: Any) -> Path:
    """Six steps with a training state at every second one; attempt 2 went back to step 2, by way
    of a third that committed nothing."""
    folder = runs / name
    folder.mkdir(parents=True)
    gone = {**process_facts(os.getpid()), "pid_start": -1}
    told = {"id": RUN, "kind": "train", "status": status, "attempt": 2, "step": 6, **gone, **facts}
    (folder / "run.json").write_text(json.dumps(told))
    (folder / "config.yaml").write_text("server:\n  kind: local\n  store: /else/where\n")
    file = RecordFile(folder / "commits.jsonl")
    for step in range(7):
        attempt = 1 if step <= 2 else 2
        saved = state(step, attempt) if step and step % 2 == 0 else None
        made = Commit(step, attempt, policy(step, attempt), step, saved, {}, {})
        if step == 3:
            file.append(Commit(3, 1, policy(3), 3, None, {}, {}).to_record())
            file.append(rollback(2, 2))
        file.append(made.to_record())
    file.close()
    return folder


EVERY = [
    *(policy(step) for step in range(4)),
    *(policy(step, 2) for step in range(2, 7)),
    *(state(2), state(4, 2), state(6, 2)),
]


def sorted_out(*runs: Path, more: tuple[str, ...] = ()) -> dict[Need, set[str]]:
    found: dict[Need, set[str]] = {need: set() for need in Need}
    for one, need in needs([Stored(uri, 1, 0.0) for uri in (*EVERY, *more)], runs):
        found[need].add(one.uri)
    return found


VOID = {policy(3), policy(2, 2)}
ENDS = {policy(0), policy(6, 2), state(6, 2)}


def test_of_a_finished_run_its_ends_are_needed(tmp_path: Path) -> None:
    a_run(tmp_path)
    found = sorted_out(tmp_path, more=("tinker://model_0123456789ab/weights/of/an-sdk",))
    assert (found[Need.needed], found[Need.void]) == (ENDS, VOID)
    assert found[Need.between] == set(EVERY) - ENDS - VOID
    assert found[Need.unknown] == {"tinker://model_0123456789ab/weights/of/an-sdk"}


def test_what_another_folders_attempt_saved_is_unknown(tmp_path: Path) -> None:
    """A copy of the run, resumed elsewhere: it has a model of its own, perhaps our number."""
    a_run(tmp_path)
    later, ours = policy(7, 3), policy(7, 2).replace("model_000000000002", "model_0123456789ab")
    above = policy(7, 2).replace("/a2/", "/a3/")
    found = sorted_out(tmp_path, more=(later, ours, above, policy(7, 2)))
    assert (found[Need.unknown], found[Need.void]) == ({later, ours, above}, VOID | {policy(7, 2)})


def test_what_is_behind_a_link_is_needed_and_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    runs, away = tmp_path / "runs", tmp_path / "away"
    a_run(runs)
    played = a_run(away, name="played", id="b", kind="eval", step=0, policy=policy(5, 2))
    (runs / "played").symlink_to(played)
    other = "20261129-122135-beef"
    a_run(away, name=other, id=other)
    (runs / other).symlink_to(away / other)
    facts = {"format": 1, "uri": policy(2), "policy_step": 2, "time": 1.0, "server": {}}
    write_policy(away, "mine", facts, "")
    (runs / "policies").symlink_to(away / "policies")
    found = sorted_out(runs, more=(policy(1, run=other),))
    assert found[Need.needed] == ENDS | {policy(5, 2), policy(2), policy(1, run=other)}
    (runs / "policies").unlink()
    (runs / "policies").mkdir()
    (runs / "policies" / "its").symlink_to(away / "policies" / "mine")
    assert policy(2) in sorted_out(runs)[Need.needed]
    (away / "policies").rename(away / "gone")
    with pytest.raises(MtrlError, match=r"its/manifest.json cannot be read"):
        sorted_out(runs)
    (runs / "policies" / "its").unlink()
    (runs / "policies").rmdir()
    (runs / "policies").symlink_to(away / "policies")
    with pytest.raises(MtrlError, match="policies is a symbolic link that leads nowhere"):
        sorted_out(runs)
    (runs / "policies").unlink()
    shutil.rmtree(away / other)
    with pytest.raises(MtrlError, match="beef is a symbolic link that leads nowhere"):
        sorted_out(runs)


def test_what_is_named_evaluated_or_played_is_needed(tmp_path: Path) -> None:
    run = a_run(tmp_path, evaluation={"before": {"policy": policy(1), "mean": 0.5, "games": 8}})
    (run / "evaluations").mkdir()
    (run / "evaluations" / "step-4.json").write_text(json.dumps({"policy": policy(4, 2)}))
    played = a_run(tmp_path, name="played", id="b", kind="eval", step=0, policy=policy(5, 2))
    (played / "commits.jsonl").unlink()
    facts = {"format": 1, "uri": policy(2), "policy_step": 2, "time": 1.0, "server": {}}
    elsewhere = tmp_path / "elsewhere"
    write_policy(elsewhere, "mine", {**facts, "initial": policy(0), "state": state(4, 2)}, "")
    found = sorted_out(tmp_path, elsewhere)
    told = {policy(1), policy(4, 2), policy(5, 2), policy(2), state(4, 2)}
    assert found[Need.needed] == ENDS | told
    (elsewhere / "policies" / "mine" / "manifest.json").write_text("{")
    with pytest.raises(MtrlError, match=r"manifest.json cannot be read"):
        sorted_out(tmp_path, elsewhere)


@pytest.mark.parametrize("status", ["cancelled", "failed", "running"])
def test_of_a_run_that_can_be_resumed_each_commit_is_needed(tmp_path: Path, status: str) -> None:
    a_run(tmp_path, status)  # "running" without a process is a lost one
    found = sorted_out(tmp_path)
    assert (found[Need.needed], found[Need.void]) == (set(EVERY) - VOID, VOID)


@pytest.mark.parametrize("fault", ["lives", "far", "script", "damaged", "lost", "unreadable"])
def test_all_of_a_run_is_needed_that_lives_or_is_not_understood(tmp_path: Path, fault: str) -> None:
    run = a_run(tmp_path)
    told = json.loads((run / "run.json").read_text())
    match fault:
        case "lives":
            told |= {"status": "running", **process_facts(os.getpid())}
        case "far":
            told |= {"status": "running", "boot": "another machine's"}
        case "script":
            told["recorded"] = "script"
        case "damaged":
            (run / "commits.jsonl").write_text("nothing of ours\n")
        case "lost":
            (run / "commits.jsonl").write_text("")
    (run / "run.json").write_text("{" if fault == "unreadable" else json.dumps(told))
    os.utime(run / "run.json", (1.0, 1.0))  # its last sign of life
    assert sorted_out(tmp_path)[Need.needed] == set(EVERY)


def test_while_an_evaluation_goes_on_nothing_is_between(tmp_path: Path) -> None:
    a_run(tmp_path)
    a_run(tmp_path, "running", "playing", id="b", kind="eval", **process_facts(os.getpid()))
    found = sorted_out(tmp_path)
    assert (found[Need.between], found[Need.void]) == (set(), VOID)


def test_a_run_whose_folder_has_another_name_is_known_by_its_id(tmp_path: Path) -> None:
    a_run(tmp_path, name="the-good-one")
    assert sorted_out(tmp_path)[Need.void] == VOID
    assert stores_of(list_runs(tmp_path)) == {Path("/else/where")}
    (tmp_path / "the-good-one/config.yaml").unlink()
    os.mkfifo(tmp_path / "the-good-one/config.yaml")  # is not waited for
    assert stores_of(list_runs(tmp_path)) == set()
