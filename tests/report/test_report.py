"""`mtrl report`: the figures in the page are those of the run, and foreign text stays text."""

import gzip
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.report.marks import Mark
from mtrl_cli.report.svg import Chart, Series, draw, swatch
from tests.report.folder import RUN, make_run

HOSTILE = (
    '</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202eevil\x00"&\u2028'
)
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """What a browser would make of the page: tables, texts, and the elements there are."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif self._open and self._open[-1] != "style":
            self.text += data
            if "td" in self._open or "th" in self._open:
                self.tables[-1][-1][-1] += data

    def rows(self, *begin: str) -> list[list[str]]:
        """The rows of the one table whose first row begins so."""
        (found,) = (t for t in self.tables if t[0][: len(begin)] == list(begin))
        return found

    def row(self, name: str) -> list[str]:
        (found,) = (row for table in self.tables for row in table if row[:1] == [name])
        return found

    @property
    def episodes(self) -> list[dict[str, Any]]:
        return json.loads(self.scripts[0])["episodes"]

    @property
    def words(self) -> dict[str, str]:
        """Token → text."""
        return json.loads(self.scripts[0])["words"]

    def classes(self, tag: str) -> list[str]:
        """The classes of all elements of a kind, in their order."""
        return [attrs.get("class") or "" for name, attrs in self.elements if name == tag]


def report(runs: Path, *asked: str) -> Page:
    out = runs / "out.html"
    done = CliRunner().invoke(app, ["report", *asked, "--runs-dir", str(runs), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(out)
    return Page(out.read_text(encoding="utf-8"))


def test_figures_are_those_of_the_steps_that_stand(tmp_path: Path) -> None:
    make_run(tmp_path)
    page = report(tmp_path, RUN)
    steps = page.rows("step", "reward", "reward_se")
    assert [row[:4] for row in steps[1:]] == [
        ["1", "−0.25", "0.3", "8"],
        ["2", "0.125", "0.2", "8"],
    ]
    # 16 + 24 sampled tokens, 8 + 8 episodes; step 2 of attempt 1 is void, its 999 are not told.
    assert "40tokens sampled" in page.text
    assert "16episodes" in page.text
    assert "999" not in page.text


def test_evaluations_with_their_paired_difference(tmp_path: Path) -> None:
    make_run(tmp_path)
    rows = report(tmp_path, RUN).rows("evaluation")
    assert rows[0][-1] == "better / equal / worse"
    assert rows[1][:3] == ["before", "10", "−0.500 ± 0.062"]
    assert rows[2][2] == "−0.250 ± 0.062"
    assert rows[2][-2:] == ["+0.250 ± 0.125(0.100 to 0.400)", "5 / 4 / 1"]  # on two lines


def test_groups_calls_borrows_and_attempts(tmp_path: Path) -> None:
    make_run(tmp_path)
    page = report(tmp_path, RUN)
    assert page.row("trained")[1:3] == ["3", "75%"]
    assert page.row("equal rewards")[1:3] == ["1", "25%"]
    # done, refused, unknown, open; 2.5 s and 1 s
    assert page.rows("call")[1] == ["forward_backward", "1", "0", "1", "0", "3.5 s"]
    assert page.row("sandbox") == ["sandbox", "1 quarantined"]
    assert "sandbox <b>sb-1</b>" in page.text
    assert "Attempt 2 went back to step 1" in page.text


def test_where_time_went(tmp_path: Path) -> None:
    make_run(tmp_path)
    page = report(tmp_path, RUN)
    # Two steps that stand, 3 s and 1 s each; 3.5 s of calls exceed the 2 s of training.
    assert page.row("waiting for groups")[1:3] == ["6.0 s", "63%"]
    assert page.row("the policy's turns")[1:3] == ["500 ms", "67%"]
    assert page.row("its environment")[1:3] == ["250 ms", "33%"]


def test_a_killed_run_lasted_until_its_last_sign_of_life(tmp_path: Path) -> None:
    """`mtrl cancel` settled it days later."""
    state = {"status": "lost", "created": 1000.0, "ended": 900_000.0, "resumed": []}
    path = make_run(tmp_path, state=state)
    commits = (path / "commits.jsonl").read_text().splitlines(keepends=True)
    (path / "commits.jsonl").write_text("".join(commits[:2]))
    (path / "ledger.jsonl").write_text("")
    (path / "heartbeat").touch()
    os.utime(path / "heartbeat", (1060.0, 1060.0))
    page = report(tmp_path, RUN)
    # One step stands, with 4 s.
    assert page.row("around the steps")[1] == "56.0 s"


def test_the_parts_of_a_step_are_told_apart(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (path / "ledger.jsonl").write_text("")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"seconds_reference": 0.25, "seconds_files": 0.5}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(tmp_path, RUN)
    # Two steps that stand, with 1 s of training each.
    assert page.row("initial policy")[1:3] == ["0.5 s", "6%"]
    assert page.row("trajectories")[1:3] == ["1.0 s", "12%"]
    assert page.row("rest of the steps")[1:3] == ["0.5 s", "6%"]


def test_all_panels_have_the_steps_of_the_run(tmp_path: Path) -> None:
    """Also that of a figure which ended before: the KL penalty of a schedule."""
    path = make_run(tmp_path)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    steady = {"audit/ess": 1.0, "server/learning_rate": 1e-3}
    for line in lines:
        line |= {"kl": 0.1, "entropy": 0.5 / line["step"], **steady}
    del lines[-1]["kl"]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = report(tmp_path, RUN).text
    ticks = text.partition("KL to the initial policy")[2].partition("Entropy")[0]
    assert ticks.removesuffix(RUN).endswith("12nats a tokenstep")  # the axis goes on to step 2
    told = "The same in every step, and not drawn: "
    assert told in text
    assert "Learning rate 0.001; " in text.partition(told)[2]
    assert "Effective sample size 1; " in text.partition(told)[2]


def test_axes_say_what_they_are_and_a_line_that_ends_says_why(tmp_path: Path) -> None:
    path = make_run(tmp_path, overrides=("train.kl_end_step=1",))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        # Over more than a decade parity is drawn on a logarithm, which entropy never is.
        line |= {"kl": 0.1 * line["step"], "parity_max": 0.01 ** line["step"]}
        line |= {"entropy": 0.01 ** line["step"]}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = report(tmp_path, RUN).text
    assert "not measured from step 2 on: the coefficient is 0 there (train.kl_end_step)" in text
    assert "nats (logarithmic)" in text
    assert "nats a token (logarithmic)" not in text
    assert text.count("mean rewardstep") == 1
    path = make_run(tmp_path, run="20261129-120001-cafe", overrides=("train.kl_end_step=2",))
    assert "not measured" not in report(tmp_path, path.name).text


def test_runs_of_the_same_settings_are_called_by_their_ids(tmp_path: Path) -> None:
    for run in (RUN, "20261129-120001-cafe"):
        make_run(tmp_path, run=run)
    page = report(tmp_path, "beef", "cafe")
    assert [row[0] for row in page.rows("run", "status")[1:]] == [RUN, "20261129-120001-cafe"]
    assert page.text.count("Settings that differ") == 0


def test_evaluations_of_mtrl_eval_are_called_by_their_policies(tmp_path: Path) -> None:
    make_run(tmp_path)
    found = {"mean": -0.5, "se": 0.0625, "games": 10}
    told = {
        "eval": {**found, "policy": "tinker://m/sampler_weights/r/a1/step-000150"},
        "rival": {**found, "policy": "base://mtrl-tiny"},
    }
    make_run(tmp_path, run="20261129-120001-cafe", state={"evaluation": told})
    rows = report(tmp_path, "cafe").rows("evaluation")
    assert [row[0] for row in rows[1:]] == ["mtrl-tiny", "step-000150"]


def test_trajectories_have_tokens_logprobs_and_advantages(tmp_path: Path) -> None:
    make_run(tmp_path)
    shown = {(e["group"], e["member"]): e for e in report(tmp_path, RUN).episodes}
    assert len(shown) == 8
    # Rewards 1, −1, −1, −1: mean −0.5, population standard deviation √0.75.
    assert shown[0, 0]["advantage"] == pytest.approx(1.5 / 0.75**0.5)
    assert shown[0, 3]["advantage"] == pytest.approx(-0.5 / 0.75**0.5)
    assert shown[1, 0]["advantage"] == 0
    assert shown[0, 0]["ids"] == [632, 592, 198, 607, 627]
    assert shown[0, 0]["logprobs"] == [-0.5, -0.25]
    assert shown[0, 0]["spans"] == [["prompt", 0, 3], ["sampled", 3, 5]]
    assert set(report(tmp_path, RUN).words) == {"632", "592", "198", "607", "627"}


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    make_run(tmp_path, said=HOSTILE, reason=HOSTILE, state={"experiment": HOSTILE})
    make_run(tmp_path, run="20261129-120001-cafe", overrides=('name="<i>x</i>"',))
    for asked in ([RUN], [RUN, "cafe"]):
        page = report(tmp_path, *asked)
        tags = [tag for tag, _ in page.elements]
        assert {"img", "i"} & set(tags) <= {"i"}  # the page's own bars and keys are <i>
        assert tags.count("script") == 1 + len(asked)
        assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
        text = (tmp_path / "out.html").read_text(encoding="utf-8")
        assert re.findall("[\x00-\x08\x0b-\x1f\x7f\u2028-\u202e]", text) == []
        assert page.episodes[0]["turns"][0]["text"].startswith("</script><script>")


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    make_run(tmp_path)
    page = report(tmp_path, RUN)
    loading = {"src", "href", "data", "action"}
    assert not any(loading & attrs.keys() for _, attrs in page.elements)
    policies = [a.get("content") for t, a in page.elements if t == "meta" and "http-equiv" in a]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]


def test_runs_are_compared_by_what_differs(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, run="20261129-120001-cafe", overrides=("train.learning_rate=0.5", "seed=3"))
    page = report(tmp_path, "beef", "cafe", "beef")
    assert page.rows("key", RUN)[1:] == [
        ["seed", "0", "3"],
        ["train.learning_rate", "0.001", "0.5"],
    ]
    slow, fast = "seed=0, train.learning_rate=0.001", "seed=3, train.learning_rate=0.5"
    named = [row[0] for row in page.rows("run", "status")[1:]]
    assert named == [f"{slow}{RUN}", f"{fast}20261129-120001-cafe"]  # on two lines
    assert [row[0] for row in page.rows("evaluation")[1:]] == [
        f"{name}: {label}" for name in (slow, fast) for label in ("before", "after")
    ]
    assert f"{slow} · {RUN}Time" in page.text
    lines = [a for tag, a in page.elements if tag == "polyline" and a["class"] == "line c1"]
    assert lines


def test_a_report_stands_in_the_run_s_folder_for_its_owner_alone(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    done = CliRunner().invoke(app, ["report", RUN, "--runs-dir", str(tmp_path)])
    assert done.exit_code == 0
    assert (path / "report.html").stat().st_mode & 0o777 == 0o600


def test_a_comparison_leaves_the_first_run_s_own_report_alone(tmp_path: Path) -> None:
    path, other = make_run(tmp_path), RUN.replace("beef", "cafe")
    make_run(tmp_path, run=other)
    for asked in ([RUN], ["beef", "cafe"], ["cafe", "beef", RUN]):
        done = CliRunner().invoke(app, ["report", *asked, "--runs-dir", str(tmp_path)])
        assert done.exit_code == 0
    assert other not in (path / "report.html").read_text()
    assert other in (path / "compare-beef-cafe.html").read_text()
    assert (tmp_path / other / "compare-cafe-beef.html").is_file()


def test_what_cannot_be_reported_is_told_in_one_line(tmp_path: Path) -> None:
    path = make_run(tmp_path)

    def told(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["report", *arguments, "--runs-dir", str(tmp_path)])
        return done.exit_code, done.stderr

    code, text = told("nothing")
    assert code == 3
    assert text.startswith("error: no run 'nothing'")
    code, text = told(RUN, "--out", str(tmp_path / "no" / "r.html"))
    assert code == 2
    assert "write another path" in text
    (path / "commits.jsonl").write_text("[]\n")
    code, text = told(RUN)
    assert code == 1
    assert f"mtrl verify {RUN}" in text
    assert len(text.splitlines()) == 1
    other = RUN.replace("beef", "cafe")
    make_run(tmp_path, run=other)
    code, text = told(RUN, other)
    assert code == 0
    assert text.startswith("warning: left out: ")
    assert f"mtrl verify {RUN}" in text
    assert len(text.splitlines()) == 1
    page = (tmp_path / other / "compare-beef-cafe.html").read_text()
    assert "<h1>blackjack</h1>" in page
    assert RUN not in page


def test_a_damaged_file_is_named_on_the_page_and_on_the_terminal(tmp_path: Path) -> None:
    """What does not need it is there."""
    path = make_run(tmp_path)
    out = tmp_path / "out.html"
    for name, text in (
        ("groups.jsonl", "[]\n"),
        ("config.yaml", "group: {sise: 1}\n"),
        ("ledger.jsonl", '{"entry": "call"}\n'),
        ("trajectories/step-000001.jsonl.gz", "no gzip"),
    ):
        (path / name).write_text(text)
    arguments = ["report", RUN, "--runs-dir", str(tmp_path), "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    page = Page(out.read_text(encoding="utf-8"))
    told = zip(
        done.stderr.splitlines(),
        ("config.yaml", "ledger.jsonl", "groups.jsonl", "step 1"),
        strict=True,
    )
    for warning, name in told:
        assert name in warning
        assert warning.endswith(f"; mtrl verify {RUN} says more")
        assert warning.removeprefix("warning: ") in page.text
    assert "reward after training" in page.text
    assert page.row("1")[1] == "−0.25"


@pytest.mark.parametrize("command", ["report", "show"])
@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("run.json", {"status": "finished", "created": "x"}, "created is not a number"),
        (
            "run.json",
            {"status": "finished", "evaluation": {"after": {"mean": 1.0}}},
            "evaluation.after.games is missing",
        ),
        ("metrics.jsonl", {"step": 1, "attempt": 1, "reward": []}, "in record 1 reward is not a"),
        ("metrics.jsonl", None, "it is not a file"),
    ],
)
def test_whatever_a_damaged_file_holds_is_one_named_damage(
    tmp_path: Path, command: str, name: str, line: object, says: str
) -> None:
    path = make_run(tmp_path) / name
    path.unlink()
    if line is None:
        os.mkfifo(path)
    else:
        path.write_text(json.dumps(line) + "\n")
    done = CliRunner().invoke(app, [command, RUN, "--runs-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {path} is damaged: ")
    assert says in " ".join(done.stderr.split())


def test_what_is_lost_beside_the_figures_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with gzip.open(path / "trajectories" / "step-000001.jsonl.gz", "wt") as file:
        file.write('{"group": 0}\n')
    done = CliRunner().invoke(app, ["report", RUN, "--runs-dir", str(tmp_path)])
    assert done.exit_code == 0
    told = " ".join(done.stderr.split())
    assert "the trajectories of step 1 are left out: " in told
    assert "in record 1 member is missing" in told
    (path / "commits.jsonl").unlink()
    done = CliRunner().invoke(app, ["report", RUN, "--runs-dir", str(tmp_path)])
    assert done.exit_code == 0
    assert "commits.jsonl cannot be read (it is empty or not there)" in " ".join(
        done.stderr.split()
    )


def test_failed_games_and_episodes_are_counted_where_runs_are_compared(tmp_path: Path) -> None:
    def evaluated(label: str, failed: int) -> dict[str, Any]:
        return {"label": label, "policy": "p", "mean": 0.5, "se": 0.1, "games": 9, "failed": failed}

    told = {"before": evaluated("before", 0), "after": evaluated("after", 3)}
    path = make_run(tmp_path, state={"evaluation": told})
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[0]["failed_episodes"] = 2.0
    during = {"eval/mean": 0.25, "eval/games": 7, "eval/failed": 1}
    lines.append({"step": 2, "attempt": 2, "time": 2.0, **during})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    make_run(tmp_path, run=(other := RUN.replace("beef", "cafe")))
    page = report(tmp_path, RUN, other)
    heads, *rows = page.rows("run", "status")
    shown = dict(zip(heads, next(row for row in rows if RUN in row[0]), strict=True))
    assert shown["before"] == "0.500 ± 0.100"
    assert shown["after"] == "0.500 ± 0.100(3 failed)"
    assert shown["episodes"] == "16(2 failed)"
    assert page.row("all runs")[3].endswith("(3 failed)")
    assert page.row(f"{RUN}: step 2")[1] == "7 (1 failed)"
    assert f"games that failed are left out: {RUN}: after 3 of 12; " in page.text
    alone = report(tmp_path, RUN)
    assert "games that failed are left out: before 0 of 9, after 3 of 12; " in alone.text


def test_no_two_of_many_settings_look_the_same() -> None:
    series = [Series("", [(1, float(n)), (2, float(n))], n) for n in range(24)]
    marks = [Mark("", "run", 3.0, float(n), None, n) for n in range(24)]
    drawn = Page(draw(Chart("", series, "", marks=marks)))
    lines = drawn.classes("polyline")
    shapes = [
        (colour["class"], shape, len(str(attrs.get("points", "")).split()), attrs.get("points"))
        for (_, colour), _, (shape, attrs) in zip(
            drawn.elements, drawn.elements[1:], drawn.elements[2:], strict=False
        )
        if str(colour.get("class")).startswith("mark ")
    ]
    assert len(set(lines)) == len(lines) == 24
    kinds = [(shape, corners) for _, shape, corners, _ in shapes]
    assert kinds == [("circle", 0)] * 6 + [("polygon", 4)] * 12 + [("polygon", 3)] * 6
    assert len({mark for mark, *_ in shapes}) == 24
    for number, (line, (mark, *_)) in enumerate(zip(lines, shapes, strict=True)):
        key = Page(swatch(number))
        assert key.classes("line") == [line]
        assert key.classes("svg") == [mark]


def test_the_head_says_what_was_trained_and_how(tmp_path: Path) -> None:
    make_run(tmp_path, overrides=("group.per_step=2", "train.learning_rate=0.004"))
    text = report(tmp_path, RUN).text
    assert "mtrl-tiny learning rate 0.004 2 groups × 4 a step" in text
    assert "no advantage" in text
    assert "KL term" not in text.partition("Groups")[2].partition("Ledger")[0]
    other = RUN.replace("beef", "cafe")
    make_run(tmp_path, run=other, overrides=("train.kl=0.1",))
    assert "no advantage; the KL term stays" in report(tmp_path, other).text


@pytest.mark.parametrize(
    ("right", "ticks"),
    [(150, [25, 50, 75, 100, 125, 150]), (57, [10, 20, 30, 40, 50, 57]), (2, [1, 2])],
)
def test_the_last_step_has_a_tick(right: int, ticks: list[int]) -> None:
    drawn = draw(Chart("", [Series("", [(1, 0.0), (right, 1.0)])], ""))
    told = re.findall(r'<text class="tick mid"[^>]*>(\d+)<', drawn)
    assert [int(tick) for tick in told] == ticks


def test_the_names_of_known_policies_fit_beside_a_narrow_chart() -> None:
    chart = Chart("t", [Series("r", [(0, -0.4), (1, -0.1)])], "r", [("always stand", -0.183)])
    svg = draw(replace(chart, large=True))
    width = float(svg.partition('viewBox="0 0 ')[2].split()[0])
    found = re.search(r'x="([\d.]+)" y="[\d.]+">always stand −0.183', svg)
    assert found is not None
    # 14 px is the size of the letters on a narrow page; a letter is a little over half as wide.
    assert float(found[1]) + 0.55 * 14 * len("always stand −0.183") <= width
