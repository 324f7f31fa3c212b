"""The report of a run that trains nothing: a rollout, and an evaluation of its own."""

import gzip
import json
from pathlib import Path
from typing import Any

from mtrl_cli.runs.trajectories import read_trajectories, sealed
from tests.report.folder import RUN, make_run
from tests.report.test_report import report


def make_played(runs: Path, kind: str, file: str, **state: Any) -> Path:
    """A run whose only trajectories are in one file, in groups as `make_run` has them."""
    told = {"kind": kind, "evaluation": {}, "resumed": [], "step": 0, "steps": None, **state}
    path = make_run(runs, state=told)
    for name in ("metrics.jsonl", "commits.jsonl", "ledger.jsonl"):
        (path / name).write_text("")
    (path / "trajectories/step-000001.jsonl.gz").rename(path / "trajectories" / file)
    return path


def test_a_rollout_is_told_by_what_was_played(tmp_path: Path) -> None:
    make_played(tmp_path, "rollout", "rollout.jsonl.gz")
    page = report(tmp_path, RUN)
    # Their mean is 0, so that the sum of squares is that of the deviations; n − 1 = 7, n = 8.
    rewards = [1.0, -1.0, -1.0, -1.0, 0.5, 0.5, 0.5, 0.5]
    se = (sum(r * r for r in rewards) / 7 / 8) ** 0.5
    assert f"0.000 ± {se:.3f}mean reward8episodes16tokens sampled" in page.text
    assert len(page.episodes) == 8
    assert {one["step"] for one in page.episodes} == {0}
    for word in ("0steps", "Learning", "Time", "no step stands", "Advantages are"):
        assert word not in page.text


def test_of_an_evaluation_some_games_are_shown_from_worst_to_best(tmp_path: Path) -> None:
    found = {"mean": -0.5, "se": 0.0625, "games": 100, "passed": 25, "policy": "base://mtrl-tiny"}
    found["failed"] = 16
    path = make_played(tmp_path, "eval", "eval-0001.jsonl.gz", evaluation={"eval": found})
    file = path / "trajectories/eval-0001.jsonl.gz"
    one, *_ = read_trajectories(file)
    with gzip.open(file, "wb") as out:
        for game in range(100):
            record = {**one, "group": game, "member": 0, "reward": game / 100}
            out.write(sealed(json.dumps(record, separators=(",", ":"))))
    page = report(tmp_path, RUN)
    assert "−0.500 ± 0.062mean reward, 100 games (16 failed)25.0%passed100episodes" in page.text
    assert "games that failed are left out: mtrl-tiny 16 of 116; " in page.text
    shown = [episode["group"] for episode in page.episodes]
    assert len(shown) == 24
    assert (shown[0], shown[-1]) == (0, 99)


def test_an_evaluation_names_its_policy(tmp_path: Path) -> None:
    found = {"mean": -0.5, "se": 0.0625, "games": 8, "policy": "tinker://m/w/RUN/a1/step-000150"}
    make_played(tmp_path, "eval", "eval-0001.jsonl.gz", evaluation={"eval": found})
    page = report(tmp_path, RUN)
    assert page.text.startswith(f"Evaluation of step-000150, blackjack {RUN}")


def make_pairs(runs: Path) -> None:
    """30 games: in game g the policy has 1 − g/29 and the other one has g/29, so that it does best
    in game 0 and worst in game 29; the other one failed game 7 once, and game 8 for good."""
    one, other = "tinker://m/w/R1/a1/step-000150", "tinker://m/w/R2/a1/step-000150"
    figures = {"mean": 0.5, "se": 0.1, "games": 30}
    held = {"eval": {**figures, "policy": one}, "rival": {**figures, "policy": other}}
    path = make_played(runs, "eval", "eval-0001.jsonl.gz", evaluation=held, policy=one)
    file = path / "trajectories/eval-0001.jsonl.gz"
    record, *_ = read_trajectories(file)
    record["member"] = 0

    def played(game: int, policy: str, reward: float | None, refill: int = 0) -> dict[str, Any]:
        failure = "lost" if reward is None else None
        told = {"group": game, "policy": policy, "reward": reward, "refill": refill}
        return {**record, **told, "failure": failure}

    lines = [played(7, other, None)]
    for game in range(30):
        theirs = None if game == 8 else game / 29
        lines.append(played(game, other, theirs, refill=int(game == 7)))
        lines.append(played(game, one, 1 - game / 29))
    with gzip.open(file, "wb") as out:
        for line in lines:
            out.write(sealed(json.dumps(line, separators=(",", ":"))))


def test_of_two_policies_the_same_games_are_shown_side_by_side(tmp_path: Path) -> None:
    make_pairs(tmp_path)
    page = report(tmp_path, RUN)
    names = ["R1/a1/step-000150", "R2/a1/step-000150"]
    assert f"Evaluation of {names[0]} against {names[1]}, blackjack" in page.text
    games = [episode["group"] for episode in page.episodes]
    assert games[::2] == games[1::2]
    assert len(set(games)) == 24
    assert games[::2] == sorted(games[::2], reverse=True)
    assert (games[0], games[-1]) == (29, 0)
    assert 8 not in games
    assert [episode["policy"] for episode in page.episodes] == names * 24
    assert None not in [episode["reward"] for episode in page.episodes]
    assert [row[0] for row in page.rows("evaluation")[1:]] == names[::-1]


def test_of_a_rollout_of_groups_of_one_many_are_shown(tmp_path: Path) -> None:
    path = make_played(tmp_path, "rollout", "rollout.jsonl.gz")
    file = path / "trajectories/rollout.jsonl.gz"
    one, *_ = read_trajectories(file)
    with gzip.open(file, "wb") as out:
        for group in range(60):
            record = {**one, "group": group, "member": 0, "reward": group / 60}
            out.write(sealed(json.dumps(record, separators=(",", ":"))))
    assert len(report(tmp_path, RUN).episodes) == 24
