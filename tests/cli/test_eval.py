"""``mtrl eval`` on the embedded server: its figures, recomputed from what it wrote down."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtrl_cli.rollout import seeds
from mtrl_cli.runs.trajectories import read_trajectories
from tests.cli.processes import command, environment
from tests.cli.world import World


def returns(run: Path, label: str) -> dict[int, float]:
    record = json.loads((run / "evaluations" / f"{label}.json").read_text())
    return {row[0]: row[1] for row in record["games"] if row[1] is not None}


def check_mean(told: dict[str, Any], values: list[float]) -> None:
    array = np.array(values)
    se = array.std(ddof=1) / np.sqrt(len(array))
    assert (told["games"], told["mean"]) == (len(array), pytest.approx(array.mean()))
    assert told["se"] == pytest.approx(se)
    assert told["passed"] == int((array > 0).sum())


def check_pairs(told: dict[str, Any], new: dict[int, float], old: dict[int, float]) -> None:
    shared = sorted(new.keys() & old.keys())
    differences = np.array([new[index] - old[index] for index in shared])
    assert told["pairs"] == len(shared)
    assert told["mean"] == pytest.approx(differences.mean())
    assert told["se"] == pytest.approx(differences.std(ddof=1) / np.sqrt(len(shared)))
    counted = [(differences > 0).sum(), (differences == 0).sum(), (differences < 0).sum()]
    assert [told["wins"], told["ties"], told["losses"]] == counted


def test_a_policy_against_the_one_that_its_run_began_from(trained: World) -> None:
    done = trained.mtrl("eval", "policy=last", "eval.games=40", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    run = trained.run(facts["run"])
    commits = trained.commits(trained.first)
    assert facts["policy"] == commits[-1]["policy"]
    assert facts["before"]["policy"] == facts["evaluated"]["versus"]["against"]
    assert facts["before"]["policy"] == commits[0]["policy"]
    new, old = returns(run, "eval"), returns(run, "rival")
    assert new.keys() == old.keys() == set(range(40))
    check_mean(facts["evaluated"], list(new.values()))
    check_mean(facts["before"], list(old.values()))
    check_pairs(facts["evaluated"]["versus"], new, old)
    assert sum(facts["evaluated"]["stops"].values()) == 40
    assert facts["evaluated"]["temperature"] == 1.0
    assert trained.state(run.name)["kind"] == "eval"
    assert trained.state(run.name)["evaluation"]["eval"] == facts["evaluated"]
    # Both policies played the games of eval.seed, and each of them once.
    played = [
        trajectory
        for file in sorted((run / "trajectories").iterdir())
        for trajectory in read_trajectories(file)
    ]
    assert len(played) == facts["episodes"] == 80
    for policy in (facts["policy"], facts["before"]["policy"]):
        own = {one["group"]: one["task"]["seed"] for one in played if one["policy"] == policy}
        assert own == {game: seeds.evaluation_task(0, game) for game in range(40)}
    assert "paired" in done.stderr
    row = trained.mtrl("runs").stdout.splitlines()[1]
    assert f"{facts['evaluated']['mean']:.3f}" in row


def test_greedy_and_alone(trained: World) -> None:
    arguments = ("policy=last@1", "eval.games=6", "eval.greedy=true", "--against", "none")
    done = trained.mtrl("eval", *arguments)
    assert done.returncode == 0, done.stderr
    assert "6 games, greedy" in done.stdout
    assert "paired" not in done.stdout
    evaluation = trained.state()["evaluation"]
    assert list(evaluation) == ["eval"]
    assert (evaluation["eval"]["temperature"], evaluation["eval"]["versus"]) == (0.0, None)


@pytest.mark.long
def test_ctrl_c_leaves_whole_pairs(trained: World, tmp_path: Path) -> None:
    running = subprocess.Popen(
        command("eval", "policy=last", "eval.games=20000", "run.concurrency=8", "--json"),
        cwd=trained.folder,
        env=environment(MTRL_HOME=str(trained.home)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stderr is not None
        next(line for line in running.stderr if "evaluation: 0/40,000 games" in line)
        time.sleep(3)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=90)
    finally:
        running.kill()
    assert running.returncode == 130, err
    facts = json.loads(out.splitlines()[-1])
    assert facts["status"] == "cancelled"
    run = trained.run(facts["run"])
    new, old = returns(run, "eval"), returns(run, "rival")
    assert 0 < len(new) < 20_000
    # The last game may have been admitted under one of the two only.
    assert abs(len(new) - len(old)) <= 1
    check_pairs(facts["evaluated"]["versus"], new, old)
    state = trained.state(run.name)
    assert (state["status"], state["borrows"]) == ("cancelled", {"held": 0, "quarantined": []})


def test_training_compares_its_last_policy_with_its_first(trained: World) -> None:
    run = trained.run(trained.first)
    told = trained.state(trained.first)["evaluation"]
    before, after = returns(run, "before"), returns(run, "after")
    assert before.keys() == after.keys() == set(range(12))
    check_mean(told["before"], list(before.values()))
    check_mean(told["after"], list(after.values()))
    assert told["before"]["versus"] is None
    assert told["after"]["versus"]["against"] == told["before"]["policy"]
    versus = told["after"]["versus"]
    check_pairs(versus, after, before)
    tally = f"{versus['wins']} better, {versus['ties']} equal, {versus['losses']} worse"
    [line] = [one for one in trained.told.splitlines() if one.startswith("paired ")]
    assert line.endswith(f"of {versus['pairs']} games {tally}")


def test_an_evaluation_on_the_way_is_compared_on_the_games_it_shares(tmp_path: Path) -> None:
    world = World(tmp_path)
    during = ("eval.games=10", "eval.every=1", "eval.games_during=4", "train.steps=2")
    done = world.mtrl("train", *during, "group.per_step=1", "group.size=4")
    assert done.returncode == 0, done.stderr
    run = world.run()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    [line] = [line for line in metrics if "eval/mean" in line]
    before, step = returns(run, "before"), returns(run, "step-1")
    assert step.keys() == set(range(4))
    gains = [step[game] - before[game] for game in range(4)]
    assert line["eval/gain"] == pytest.approx(np.mean(gains))
    assert line["eval/mean"] == pytest.approx(np.mean(list(step.values())))
