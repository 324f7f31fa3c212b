"""`mtrl config`: what is composed, where it comes from, what could be."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from tests.cli.processes import mtrl

SECRET = "sk-3f9ab1"


def test_show_prints_every_value_with_its_origin(tmp_path: Path) -> None:
    done = mtrl("config", "show", "group.size=4", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["key"] == ["value", "from"]
    assert rows["group.size"] == ["4", "group.size=4"]
    assert rows["server.kind"] == ["local", "server/local.yaml:1", "(packaged)"]
    assert rows["env.e2b.settles"] == ["75.0", "default"]
    assert list(tmp_path.iterdir()) == []


def test_show_in_json_and_yaml_agree_and_compose_again(tmp_path: Path) -> None:
    shown = json.loads(mtrl("config", "show", "--json", "seed=9", cwd=tmp_path).stdout)
    assert shown["values"]["seed"] == {
        "value": 9,
        "origin": "override",
        "where": "seed=9",
        "line": None,
    }
    assert shown["options"]["server"] == "local"
    (tmp_path / "again.yaml").write_text(
        mtrl("config", "show", "--yaml", "seed=9", cwd=tmp_path).stdout
    )
    again = mtrl("config", "show", "--json", "conf=again.yaml", cwd=tmp_path)
    values = json.loads(again.stdout)["values"]
    assert {key: one["value"] for key, one in values.items()} == {
        key: one["value"] for key, one in shown["values"].items()
    }
    assert values["seed"]["where"] == "again.yaml"
    line = (tmp_path / "again.yaml").read_text().splitlines()[values["seed"]["line"] - 1]
    assert line == "seed: 9"


def test_show_hides_secrets_also_where_they_are_copied(tmp_path: Path) -> None:
    copied = (f"server.api_key={SECRET}", "name=a-${server.api_key}", f"task.params.x=a{SECRET}")
    for more in ((), ("--json",), ("--yaml",)):
        done = mtrl("config", "show", *copied, *more, cwd=tmp_path)
        assert done.returncode == 0
        assert SECRET not in done.stdout + done.stderr


def test_show_of_a_section_or_a_key_shows_only_that() -> None:
    run = CliRunner().invoke(app, ["config", "show", "train.steps=7", "eval", "train.steps"])
    keys = [line.split()[0] for line in run.stdout.splitlines()[1:]]
    assert keys == ["train.steps", *(key for key in keys if key.startswith("eval."))]
    assert len(keys) > 2
    told = CliRunner().invoke(app, ["config", "show", "train", "--json"]).stdout
    assert {key.partition(".")[0] for key in json.loads(told)["values"]} == {"train"}
    refused = CliRunner().invoke(app, ["config", "show", "train", "--yaml"])
    assert refused.exit_code == 2
    assert "--yaml prints a whole experiment: leave out train" in refused.stderr


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("dev e2b", "No such command 'e2b'. Did you mean 'e2b-emulator'?"),
        ("rolout", "No such command 'rolout'. Did you mean 'rollout'?"),
        ("train --conf blackjack", "No such option: --conf; write conf=blackjack"),
        ("eval --conf=blackjack", "No such option: --conf; write conf=blackjack"),
        ("config show --train.steps 3", "No such option: --train.steps; write train.steps=3"),
        ("train --seed --quiet", "No such option: --seed; write seed=VALUE"),
        (
            f"train --server.api_key={SECRET}",
            "No such option: --server.api_key; write server.api_key=VALUE",
        ),
        ("train --steps 5", "No such option: --steps; write train.steps=5"),
        (
            "config show --learning-rate=1e-4",
            "No such option: --learning-rate; write train.learning_rate=1e-4",
        ),
        (
            "doctor --kind local",
            "No such option: --kind; write server.kind=local or env.kind=local",
        ),
        (
            f"rollout --api-key {SECRET}",
            "No such option: --api-key; write server.api_key=VALUE or env.api_key=VALUE or"
            " env.e2b.api_key=VALUE",
        ),
        ("train --jsn", "No such option: --jsn (Possible options: --json)"),
    ],
)
def test_what_was_meant_is_suggested(typed: str, told: str) -> None:
    run = CliRunner().invoke(app, typed.split())
    assert run.exit_code == 2
    assert run.stderr.splitlines()[-1] == f"Error: {told}"


def test_show_tells_mistakes_as_a_run_does(tmp_path: Path) -> None:
    done = mtrl("config", "show", "group.sise=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean group.size?" in done.stderr


def test_list_says_what_each_experiment_is(tmp_path: Path) -> None:
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "mine.yaml").write_text("# Mine alone. More words.\nname: mine\n")
    (tmp_path / "conf" / "env" / "own.yaml").write_text("kind: openenv\n")
    out = mtrl("config", "list", cwd=tmp_path).stdout
    assert "  mine                 Mine alone\n" in out
    facts = json.loads(mtrl("config", "list", "--json", cwd=tmp_path).stdout)
    assert facts["experiments"]["mine"] == {"file": "conf/mine.yaml", "about": "Mine alone"}
    assert "own" in facts["groups"]["env"]


def test_several_values_are_refused_and_multirun_is_named(tmp_path: Path) -> None:
    done = mtrl("train", "seed=1,2", cwd=tmp_path)
    assert done.returncode == 2
    assert "at: seed=1,2\n hint: --multirun runs each of them" in done.stderr
    done = mtrl("train", "conf=blackjack,records", cwd=tmp_path)
    assert done.returncode == 2
    assert " hint: --multirun runs each of them" in done.stderr
