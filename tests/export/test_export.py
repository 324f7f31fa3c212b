"""`mtrl export`: rows and Datums hold what was sampled, and the advantages it was trained with."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.runs.files import read_records
from mtrl_cli.runs.processes import process_facts
from tests.report.folder import RUN, make_run


def exported(runs: Path, form: str, *more: str) -> Path:
    out = runs / f"out.{form}"
    command = ["export", RUN, "--format", form, "--runs-dir", str(runs), "--out", str(out), *more]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(out)
    assert out.stat().st_mode & 0o777 == 0o600
    return out


def test_rows_have_arrays_of_one_length(tmp_path: Path) -> None:
    make_run(tmp_path)
    rows = list(read_records(exported(tmp_path, "jsonl")))
    assert [(row["group"], row["member"]) for row in rows] == [
        (g, m) for g in (0, 1) for m in range(4)
    ]
    row = rows[0]
    assert row["tokens"] == [632, 592, 198, 607, 627]
    assert row["mask"] == [0, 0, 0, 1, 1]
    assert row["logprobs"] == [0, 0, 0, -0.5, -0.25]
    advantage = 1.5 / math.sqrt(0.75)  # returns 1, −1, −1, −1
    assert row["advantages"] == pytest.approx([0, 0, 0, advantage, advantage])
    assert (row["step"], row["outcome"], rows[4]["outcome"]) == (1, "trained", "constant_reward")
    assert rows[4]["advantage"] == 0


def test_datums_are_shifted_by_one_and_weighted(tmp_path: Path) -> None:
    make_run(tmp_path)
    lines = exported(tmp_path, "tinker", "--step", "1").read_text().splitlines()
    assert len(lines) == 4  # the group of constant reward carries no signal
    datum = json.loads(lines[0])
    assert datum["model_input"]["chunks"][0]["tokens"] == [632, 592, 198, 607]
    inputs = datum["loss_fn_inputs"]
    assert inputs["target_tokens"]["data"] == [592, 198, 607, 627]
    assert inputs["logprobs"]["data"] == [0, 0, -0.5, -0.25]
    # token_mean: eight trajectories of two sampled tokens each
    weighted = 1.5 / math.sqrt(0.75) / 16
    assert inputs["advantages"]["data"] == pytest.approx([0, 0, weighted, weighted])


def test_a_kl_term_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    make_run(tmp_path, overrides=("train.kl=0.3",))
    done = CliRunner().invoke(
        app,
        [
            "export",
            RUN,
            "--format",
            "tinker",
            "--runs-dir",
            str(tmp_path),
            "--out",
            str(tmp_path / "o"),
        ],
    )
    assert done.exit_code == 0
    assert "lack the KL term" in done.stderr


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    needs = "python -m pip install 'mtrl-cli[parquet]'"
    parquet = pytest.importorskip("pyarrow.parquet", reason=needs)
    make_run(tmp_path)
    rows = list(read_records(exported(tmp_path, "jsonl")))
    found: list[dict[str, Any]] = parquet.read_table(exported(tmp_path, "parquet")).to_pylist()
    assert len(found) == len(rows)
    for flat, row in zip(found, rows, strict=True):
        assert {**flat, "turns": json.loads(flat["turns"]), "opening": row["opening"]} == {
            **row,
            "logprobs": flat["logprobs"],
            "advantages": flat["advantages"],
        }
        assert flat["logprobs"] == pytest.approx(row["logprobs"])
        assert flat["advantages"] == pytest.approx(row["advantages"])


def test_what_cannot_be_exported_is_told_in_one_line(tmp_path: Path) -> None:
    make_run(tmp_path)

    def told(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["export", RUN, "--runs-dir", str(tmp_path), *arguments])
        assert len(done.stderr.splitlines()) == 1
        return done.exit_code, done.stderr

    assert told("--format", "csv")[0] == 2
    code, text = told("--step", "2")  # it wrote none
    assert (code, "there are: steps 1 to 1" in text) == (2, True)
    code, text = told("--out", str(tmp_path / "no" / "o.jsonl"))
    assert (code, "write another path" in text) == (2, True)
    torn = tmp_path / RUN / "trajectories" / "step-000001.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:40])
    code, text = told("--out", str(tmp_path / "o.jsonl"))
    assert (code, "mtrl verify" in text) == (1, True)
    assert not list(tmp_path.glob("o.jsonl*"))


def test_last_is_the_newest_run_that_trains(tmp_path: Path) -> None:
    trained = make_run(tmp_path)
    played = tmp_path / "20991231-000000-ffff"
    played.mkdir()
    (played / "run.json").write_text('{"id": "x", "kind": "rollout", "status": "finished"}')
    (tmp_path / "latest").symlink_to(played.name)
    out, where = tmp_path / "out.jsonl", ("--runs-dir", str(tmp_path))
    done = CliRunner().invoke(app, ["export", "last", "--out", str(out), *where])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text().splitlines()[0])["run"] == trained.name

    told = CliRunner().invoke(app, ["export", "ffff", *where])
    assert told.exit_code == 2
    assert "has no trajectories of a step: what is exported" in told.output


def test_without_a_path_it_lies_beside_the_report_and_the_folder_is_as_sound(
    tmp_path: Path,
) -> None:
    run, where = make_run(tmp_path), ("--runs-dir", str(tmp_path))
    checked = CliRunner().invoke(app, ["verify", RUN, *where])
    for arguments, name in (((), f"{RUN}.jsonl"), (("--format", "tinker"), f"{RUN}.tinker.jsonl")):
        done = CliRunner().invoke(app, ["export", RUN, *arguments, *where])
        assert (done.exit_code, done.stdout) == (0, f"{run / name}\n")
        assert (run / name).stat().st_mode & 0o777 == 0o600
    again = CliRunner().invoke(app, ["verify", RUN, *where])
    assert (again.exit_code, again.stdout) == (checked.exit_code, checked.stdout)


def test_what_is_made_of_a_run_that_goes_on_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, state={"status": "running", "ended": None, **process_facts(os.getpid())})
    told = f"note: {RUN} goes on; this is what it has committed so far"
    for command in (["export", RUN, "--out", str(tmp_path / "o.jsonl")], ["report", RUN]):
        done = CliRunner().invoke(app, [*command, "--runs-dir", str(tmp_path)])
        assert (done.exit_code, done.stderr.splitlines()[0]) == (0, told)
    checked = CliRunner().invoke(app, ["verify", RUN, "--runs-dir", str(tmp_path)]).stdout
    assert "note: the run goes on: what it writes now was not checked" in checked
    assert "mtrl cancel" not in checked
