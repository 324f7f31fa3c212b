"""Tables of the configuration fit the terminal; on a pipe they do not depend on one."""

import gzip
import json
from pathlib import Path

import pytest

from mtrl_cli.config.keys import schema_keys
from tests.cli.processes import command, environment, mtrl, on_terminal


def lines(*arguments: str, cwd: Path, columns: int) -> list[str]:
    code, written = on_terminal(
        command(*arguments), cwd=cwd, environ=environment(), size=(40, columns)
    )
    assert code == 0
    assert "\x1b" not in written
    return written.replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 140])
def test_config_show_fits(tmp_path: Path, columns: int) -> None:
    shown = lines("config", "show", cwd=tmp_path, columns=columns)
    assert max(map(len, shown)) <= columns
    values = [key for key, kind in schema_keys().items() if kind != "section"]
    assert {line.split()[0] for line in shown} >= set(values)
    whole = "mtrl_cli.tasks.blackjack.env:BlackjackEnvironment"
    assert any(whole in line for line in shown) == (columns == 140)
    assert any(line.startswith("seed ") and line.endswith("(packaged)") for line in shown)


def test_nothing_is_cut_on_a_pipe(tmp_path: Path) -> None:
    shown = mtrl("config", "show", cwd=tmp_path).stdout
    assert "mtrl_cli.tasks.blackjack.env:BlackjackEnvironment" in shown
    assert "…" not in shown
    name = "a-name-of-an-experiment-that-no-table-has-room-for"
    told = {"status": "finished", "experiment": name, "kind": "rollout", "created": 1.0}
    run = tmp_path / "runs" / "20261129-122135-a7aa"
    (run / "trajectories").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(told))
    assert name in mtrl("runs", cwd=tmp_path).stdout
    assert name not in "".join(lines("runs", cwd=tmp_path, columns=80))
    task = "a-task-whose-id-is-longer-than-a-column"
    episode = {
        "group": 0, "member": 0, "task": {"id": task, "seed": 1}, "reward": 1.0, "stop": "done",
        "tokens": [1, 2], "logprobs": [-0.5], "spans": [["prompt", 0, 1], ["sampled", 1, 2]],
        "policy": "u/p", "policy_step": 0, "turns": [], "failure": None, "refusal": None,
    }  # fmt: skip
    with gzip.open(run / "trajectories" / "episodes.jsonl.gz", "wt") as file:
        file.write(json.dumps(episode) + "\n")
    for name in ("show", "trajectory"):
        assert task in mtrl(name, "last", cwd=tmp_path).stdout


def test_config_list_wraps_what_experiments_are(tmp_path: Path) -> None:
    narrow = lines("config", "list", cwd=tmp_path, columns=80)
    assert max(map(len, narrow)) <= 80
    piped = mtrl("config", "list", cwd=tmp_path).stdout
    assert max(map(len, piped.splitlines())) > 80
    assert " ".join(narrow).split() == piped.split()
