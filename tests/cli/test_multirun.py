"""`--multirun`: every combination one by one, a comparison at the end."""

import json
import shlex
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import pytest

from mtrl_cli.cli.running.comparison import Result, compare
from mtrl_cli.config.sweep import combinations
from mtrl_cli.training.events import Evaluated, RunFinished
from tests.cli.processes import Running, mtrl


def test_a_dry_run_lists_the_runs(tmp_path: Path) -> None:
    done = mtrl("train", "-m", "seed=1,2", "group.size=4,8", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("run 1/4: seed=1 group.size=4, ")
    assert lines[3].startswith("run 4/4: seed=2 group.size=8, ")
    told = mtrl("train", "-m", "seed=1,2", "--dry-run", "--json", cwd=tmp_path)
    assert [run["varied"] for run in json.loads(told.stdout)["runs"]] == [
        {"seed": "1"},
        {"seed": "2"},
    ]
    assert list(tmp_path.iterdir()) == []


def test_one_run_each_and_a_table(tmp_path: Path) -> None:
    done = mtrl("train", "-m", "seed=1,2,3", cwd=tmp_path, fake="finish")
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("run ")][::2] == [
        "run 1/3: seed=1",
        "run 2/3: seed=2",
        "run 3/3: seed=3",
    ]
    head, *rows, columns, over, compare = done.stdout.splitlines()[-7:]
    assert columns == "reward: mean of all steps; before, after: of the evaluations"
    assert head.split() == ["seed", "status", "steps", "reward", "before", "after", "time", "run"]
    assert [row.split()[:6] for row in rows] == [
        [seed, "finished", "2", "0.500", "-0.412", "-0.060"] for seed in "123"
    ]
    assert over == ("3 runs: before -0.412 in all → after -0.060 in all, +0.352 in all")
    names = [row.split()[-1] for row in rows]
    assert compare.split() == ["compare", "mtrl", "report", *(name[-4:] for name in names)]


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    done = mtrl("train", "-m", "seed=1,2", cwd=tmp_path, fake="fail-first")
    assert done.returncode == 1
    assert "error: server http://h:1 refused" in done.stderr
    first, second, _ = done.stdout.splitlines()[-3:]
    assert first.split()[:3] == ["1", "failed", "(1)"]
    assert second.split()[:2] == ["2", "finished"]


def test_nothing_begins_when_one_cannot_be_run(tmp_path: Path) -> None:
    done = mtrl("train", "-m", "group.size=4,0", cwd=tmp_path, fake="finish")
    assert (done.returncode, done.stdout) == (2, "")
    assert "group.size is 0" in done.stderr


def test_ctrl_c_settles_the_running_one_and_starts_none(tmp_path: Path) -> None:
    typed = ("train", "-m", "seed=1,2,3", "name=a b")
    run = Running(*typed, cwd=tmp_path, fake="drain").ready()
    run.signal(signal.SIGINT)
    code, out, err = run.end()
    assert code == 130
    assert "run 2/3" not in out
    row, left, rest = out.splitlines()[-3:]
    assert row.split()[:2] == ["1", "cancelled"]
    assert left == "not begun: seed=2; seed=3"
    assert rest == "the rest   mtrl train -m seed=2,3 'name=a b'"
    assert "READY" not in err


def test_what_was_not_begun_is_run_by_commands_that_can_be_pasted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ["train", "-m", "seed=1,2,3", "+task.params.n=range(0,2)", "env=echo", "group.size=4,8"]
    runs = [varied for varied, _ in combinations(typed[2:])]
    told = {}
    for begun in (1, 3, 4, 11):
        compare([], runs[begun:], str, typed)
        lines = capsys.readouterr().out.splitlines()
        told[begun] = [line[11:] for line in lines if "mtrl train" in line]
        again = [varied for line in told[begun] for varied in _runs_of(line)]
        assert again == runs[begun:]
    assert told[11] == ["mtrl train -m seed=3 +task.params.n=1 env=echo group.size=8"]
    assert told[4] == ["mtrl train -m seed=2,3 +task.params.n=0,1 env=echo group.size=4,8"]
    assert told[1] == [
        "mtrl train -m seed=1 +task.params.n=0 env=echo group.size=8",
        "mtrl train -m seed=1 +task.params.n=1 env=echo group.size=4,8",
        "mtrl train -m seed=2,3 +task.params.n=0,1 env=echo group.size=4,8",
    ]


def _runs_of(command: str) -> list[dict[str, str]]:
    """What its runs have of their own, and what they share."""
    given = [one.lstrip("+") for one in shlex.split(command)[3:]]
    runs = [dict(one.split("=") for one in chosen) for _, chosen in combinations(given)]
    return [{key: value for key, value in run.items() if key != "env"} for run in runs]


def test_json_ends_with_all_results(tmp_path: Path) -> None:
    done = mtrl("train", "-m", "seed=1,2", "--json", cwd=tmp_path, fake="fail-first")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    last = events[-1]
    assert (last["event"], last["not_begun"]) == ("multirun_finished", 0)
    assert [(run["varied"], run["exit_code"]) for run in last["runs"]] == [
        ({"seed": "1"}, 1),
        ({"seed": "2"}, 0),
    ]
    assert last["runs"][1]["finished"]["after"]["mean"] == -0.06
    assert [event["event"] for event in events].count("run_finished") == 1


def test_with_resume_it_makes_no_sense(tmp_path: Path) -> None:
    done = mtrl("train", "-m", "--resume", "last", cwd=tmp_path)
    assert done.returncode == 2
    assert "--multirun starts several" in done.stderr


def test_seeds_of_a_setting_have_a_mean_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    after = {("8", "1"): -0.10, ("8", "2"): -0.20, ("8", "3"): -0.06, ("16", "1"): 0.1}
    results = [
        Result({"seed": seed, "group.size": size}, 0, 1.0, None, ended(mean))
        for (size, seed), mean in after.items()
    ]
    results.append(Result({"seed": "4", "group.size": "8"}, 1, 1.0, None, None))
    compare(results, 0, str)
    told = [line for line in capsys.readouterr().out.splitlines() if "runs:" in line]
    error = stdev([-0.10, -0.20, -0.06]) / 3**0.5
    assert told == [
        f"group.size=8, 3 runs: before -0.400 in all → after -0.120 ± {error:.3f},"
        f" +0.280 ± {error:.3f}, ± standard error over the runs"
    ]


@pytest.mark.parametrize(
    ("finished", "reward", "head", "row", "told"),
    [
        ({"steps": 12}, 0.5, "steps reward", "12 0.500", "reward: mean of the last 10 steps"),
        ({}, 0.25, "reward", "0.250", "reward: mean of all episodes"),
        (
            {"evaluated": -0.06},
            None,
            "reward",
            "-0.060",
            "reward: mean of the games that were evaluated",
        ),
        (
            {"evaluated": -0.06, "before": -0.4},
            None,
            "reward against",
            "-0.060 -0.400",
            "reward: mean of the games that were evaluated; against: of the other policy",
        ),
    ],
)
def test_the_table_says_what_its_rewards_are_of(
    capsys: pytest.CaptureFixture[str],
    finished: dict[str, float],
    reward: float | None,
    head: str,
    row: str,
    told: str,
) -> None:
    facts = {
        name: value if name == "steps" else Evaluated("x", "p", value, 0.01, 100, 0.0)
        for name, value in finished.items()
    }
    run = RunFinished("r", "runs/r", "finished", None, 0, 8, 80, "p", None, None, {})
    compare([Result({"seed": "1"}, 0, 1.0, reward, replace(run, **facts))], 0, str)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["seed", "status", *head.split(), "time", "run"]
    assert lines[2].split() == ["1", "finished", *row.split(), "00:00:01", "r"]
    assert lines[3:] == [told]


def ended(after: float) -> RunFinished:
    before, last = (Evaluated("x", "p", mean, 0.01, 100, 0.0) for mean in (-0.4, after))
    return RunFinished("r", "runs/r", "finished", None, 2, 8, 80, "p", before, last, {})


@pytest.mark.parametrize("arguments", [["seed=1,1,2"], ["seed=1,2", "seed=1,2"]])
def test_the_same_run_twice_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    done = mtrl("train", "-m", *arguments, "--dry-run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: two runs of the sweep are the same: seed=1 and seed=1\n" in done.stderr


@pytest.mark.parametrize(
    ("folders", "command"),
    [
        (("x/runs/r-1", "x/runs/r-2"), "r-1 r-2 --runs-dir x/runs"),
        (("it's, b/r-1", "r-2"), """'it'"'"'s, b/r-1' ./r-2"""),
    ],
)
def test_the_line_that_compares_finds_the_runs_wherever_they_are(
    capsys: pytest.CaptureFixture[str], folders: Sequence[str], command: str
) -> None:
    runs = [
        RunFinished(Path(folder).name, folder, "finished", None, 1, 8, 80, "p", None, None, {})
        for folder in folders
    ]
    compare([Result({"seed": "1"}, 0, 1.0, 0.5, run) for run in runs], 0, str)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.removeprefix("compare    mtrl report ") == command


def test_a_comparison_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is named by the part of its id that commands take; sentences are broken between
    words."""
    for module in ("mtrl_cli.cli.running.comparison", "mtrl_cli.display.terminal"):
        monkeypatch.setattr(f"{module}.columns", lambda stream=None: 80)
    results = [
        Result(
            {"group.size": "4", "seed": tail[0]},
            0,
            1.0,
            -0.5,
            replace(ended(float(f"-0.{tail[0]}")), run=f"20261130-152920-{tail}"),
        )
        for tail in ("1aaa", "2bbb")
    ]
    compare(results, 0, str)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[-1] for line in lines[1:4]] == ["run", "1aaa", "2bbb"]
    assert lines[5].startswith("group.size=4, 2 runs: before")
    assert lines[6].startswith("    ")
