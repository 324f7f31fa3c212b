"""Runs that differ in the seed alone: their mean and its standard error, beside each of them."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.report.folder import make_run
from tests.report.test_report import Page, report

AFTER = {1: -0.2, 2: -0.1, 3: -0.06}
"""Seed → the mean reward after training."""


def make_seed(
    runs: Path, seed: int, *overrides: str, rewards: tuple[float, ...] = (), before: float = -0.4
) -> str:
    """A run of a seed, with a step for each of ``rewards``; its id."""
    run = f"20261129-12{seed:02d}{len(list(runs.iterdir())):02d}-cafe"
    evaluation: dict[str, Any] = {"policy": "p", "se": 0.02, "games": 50, "passed": 20}
    versus = {"mean": AFTER[seed] + 0.4, "se": 0.03, "pairs": 50, "wins": 1, "ties": 1, "losses": 1}
    told = {
        "before": {**evaluation, "mean": before},
        "after": {**evaluation, "mean": AFTER[seed], "passed": 20 + seed, "versus": versus},
    }
    state = {"evaluation": told, "step": len(rewards) or 2}
    path = make_run(runs, run=run, overrides=(f"seed={seed}", *overrides), state=state)
    if rewards:
        step, commit = (
            json.loads((path / name).read_text().splitlines()[1])
            for name in ("metrics.jsonl", "commits.jsonl")
        )
        numbered = list(enumerate(rewards, 1))
        lines = [{**step, "step": n, "attempt": 1, "reward": reward} for n, reward in numbered]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        begin = (path / "commits.jsonl").read_text().splitlines()[0]
        made = [json.dumps({**commit, "step": n, "groups": {}}) for n, _ in numbered]
        (path / "commits.jsonl").write_text("\n".join([begin, *made]) + "\n")
    return run


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def points(page: Page, weight: str) -> list[list[tuple[float, float]]]:
    """The corners of the learning curve's lines of a weight."""
    large = [attrs for tag, attrs in page.elements if tag in ("svg", "polyline", "polygon")]
    ends = [n for n, attrs in enumerate(large) if "viewbox" in attrs]
    curve = large[ends[0] + 1 : ends[1] if len(ends) > 1 else None]
    told = (str(a["points"]) for a in curve if weight in str(a["class"]).split())
    return [[tuple(map(float, pair.split(","))) for pair in one.split()] for one in told]  # type: ignore[misc]


def test_a_setting_is_told_by_the_mean_over_its_seeds(tmp_path: Path) -> None:
    runs = [make_seed(tmp_path, seed) for seed in AFTER]
    runs += [make_seed(tmp_path, 2, "group.size=8")]
    page = report(tmp_path, *runs)
    rows = page.rows("setting", "runs")
    assert rows[0][2:] == ["reward before", "reward after", "gain", "passed before", "passed after"]
    mean, error = mean_and_error(list(AFTER.values()))
    passed, passed_error = mean_and_error([21 / 50, 22 / 50, 23 / 50])
    assert rows[1] == [
        "group.size=4",
        "3\u00a0seeds",
        "−0.400 in all",
        f"−{-mean:.3f} ± {error:.3f}",
        f"+{mean + 0.4:.3f} ± {error:.3f}",
        "40.0% in all",
        f"{100 * passed:.1f} ± {100 * passed_error:.1f}%",
    ]
    # One run has no error over runs.
    assert rows[2] == ["group.size=8", "1\u00a0run", "−0.400", "−0.100", "+0.300", "40.0%", "44.0%"]
    assert "6 runs" not in page.text
    text = page.text.replace("\u00a0", " ")
    assert re.search(r"4 runs of 2 settings \d{4}-\d\d-\d\d \d\d:\d\d mtrl-tiny learning", text)
    assert "groups ×" not in text.partition("Results")[0]  # they differ


def test_a_missing_evaluation_is_told_beside_the_mean(tmp_path: Path) -> None:
    runs = [make_seed(tmp_path, seed) for seed in AFTER]
    path = tmp_path / runs[0] / "run.json"
    state = json.loads(path.read_text())
    del state["evaluation"]["after"]
    path.write_text(json.dumps(state))
    mean, error = mean_and_error([AFTER[2], AFTER[3]])
    row = report(tmp_path, *runs).rows("setting", "runs")[1]
    assert row[:2] == ["all runs", "3\u00a0seeds"]
    assert row[3] == f"−{-mean:.3f} ± {error:.3f} (n = 2)"


def test_the_mean_of_the_seeds_has_a_band_of_its_standard_error(tmp_path: Path) -> None:
    rewards = {1: (0.0, 0.3, 0.9), 2: (0.2, 0.3, 0.1), 3: (0.1, 0.6, 0.2, 5.0)}
    page = report(tmp_path, *(make_seed(tmp_path, seed, rewards=r) for seed, r in rewards.items()))
    assert len(points(page, "thin")) == 3
    (mean,) = points(page, "thick")
    (band,) = points(page, "band")
    # Heights on the screen are a linear map of rewards: its two numbers from one of the thin lines.
    third = points(page, "thin")[2]
    slope = (third[3][1] - third[0][1]) / (5.0 - 0.1)
    told = [mean_and_error([rewards[seed][step] for seed in rewards]) for step in range(3)]
    assert [y for _, y in mean] == pytest.approx(
        [third[0][1] + slope * (value - 0.1) for value, _ in told], abs=0.11
    )
    upper, lower = band[:3], band[:2:-1]  # once along the top, and back below
    reach = [below[1] - above[1] for above, below in zip(upper, lower, strict=True)]
    assert reach == pytest.approx([-slope * 2 * error for _, error in told], abs=0.21)
    # Step 4 is one run's alone, and the mean ends before it.
    assert len(third) == 4
    assert "at each step that all of them have; band: ± one standard error" in page.text


def test_a_caption_tells_what_its_figure_shows_and_nothing_else(tmp_path: Path) -> None:
    def learning(*runs: str) -> tuple[str, Page]:
        page = report(tmp_path, *runs)
        return page.text.partition("Learning")[2].partition("mean rewardstep")[0], page

    short = make_seed(tmp_path, 1, rewards=(0.1, 0.2))
    told, page = learning(short)
    assert "band" in told
    assert points(page, "band")
    long = make_seed(tmp_path, 1, rewards=tuple(n % 3 / 3 for n in range(20)))
    told, page = learning(long)
    assert "band" not in told
    assert points(page, "band") == []
    assert "Line: the same averaged over the last 10 steps" in told
    assert len(points(page, "faint")) == 1
    other = make_seed(tmp_path, 2, rewards=tuple(n % 4 / 4 for n in range(20)))
    told, page = learning(long, other)
    assert "band: ± one standard error of that mean" in told
    assert points(page, "faint") == []
    assert "Pale" not in told


def circles(page: Page) -> list[tuple[str, float, float]]:
    """Class, place and height of each evaluation in the learning curve."""
    found, mark = [], ""
    for tag, attrs in page.elements:
        if tag == "g":
            mark = str(attrs["class"])
        elif tag == "circle" and mark:
            found.append((mark, float(str(attrs["cx"])), float(str(attrs["cy"]))))
            mark = ""
    return found


def test_equal_evaluations_are_drawn_once_and_others_side_by_side(tmp_path: Path) -> None:
    """Two runs of two settings: the same before training, close to each other after it."""
    runs = [make_seed(tmp_path, seed, f"group.size={size}") for seed, size in ((2, 4), (3, 8))]
    page = report(tmp_path, *runs)
    before, *after = circles(page)
    assert before[0] == "mark shared"
    assert "2 runs, equal" in page.text
    assert "Equal ones are drawn once." in page.text
    assert [mark for mark, _, _ in after] == ["mark c0", "mark c1"]
    assert after[0][1] - after[1][1] == 10
    page = report(tmp_path, runs[0], make_seed(tmp_path, 1, "group.size=2", before=-0.39))
    assert [mark for mark, _, _ in circles(page)] == ["mark c0", "mark c1"] * 2
    assert "equal" not in page.text.partition("Learning")[2].partition("Runs")[0]


def test_a_seed_that_was_run_twice_is_two_runs(tmp_path: Path) -> None:
    page = report(tmp_path, make_seed(tmp_path, 1), make_seed(tmp_path, 1))
    assert page.rows("setting", "runs")[1][:2] == ["all runs", "2\u00a0runs"]
    assert re.search(r"blackjack: 2 runs2 runs, all other settings equal", page.text)
