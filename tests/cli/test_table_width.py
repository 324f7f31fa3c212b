"""Tables of the configuration fit the terminal; on a pipe they do not depend on one."""

import time
from pathlib import Path

import pytest

from mtrl_cli.config.keys import schema_keys
from mtrl_cli.display.text import run_tail
from tests.cli.played import episode, rollout
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
    task = "a-task-whose-id-is-longer-than-a-column"
    rollout(tmp_path / "runs", episode(0, 0, task={"id": task, "seed": 1}), experiment=name)
    assert name in mtrl("runs", cwd=tmp_path).stdout
    assert name not in "".join(lines("runs", cwd=tmp_path, columns=80))
    for name in ("show", "trajectory"):
        assert task in mtrl(name, "last", cwd=tmp_path).stdout


def test_no_table_breaks_a_number_an_id_or_a_word(tmp_path: Path) -> None:
    """The widest that each column has, at 80 columns: all words of the pipe's table are there."""
    means = {"before": {"mean": -123.862}, "after": {"mean": 1000.664}}
    state = {
        "kind": "rollout", "experiment": "blackjack-with-a-long-name", "status": "finished",
        "step": 20_000, "steps": 20_000, "evaluation": means, "created": time.time() - 9e6,
        "borrows": {"held": 0, "quarantined": ["a", "b"]},
    }  # fmt: skip
    task = {"id": "blackjack-1234567890123", "seed": 1}
    ends = ("done", "max_turns", "no_call", "turn_tokens", "context")
    games = [
        episode(123_456, number, task=task, stop=stop, reward=-1_000.5)
        for number, stop in enumerate(ends)
    ]
    rollout(tmp_path / "runs", *games, **state)
    for command_ in (["runs"], ["trajectory", "last"]):
        narrow = lines(*command_, cwd=tmp_path, columns=80)
        piped = mtrl(*command_, cwd=tmp_path).stdout
        assert max(map(len, piped.splitlines())) > 80
        assert max(map(len, narrow)) <= 80
        whole = [run_tail(word) for word in piped.split() if not word.startswith("blackj")]
        shown = [word for word in " ".join(narrow).split() if not word.startswith("blackj")]
        assert sorted(shown) == sorted(whole)


def test_config_list_wraps_what_experiments_are(tmp_path: Path) -> None:
    narrow = lines("config", "list", cwd=tmp_path, columns=80)
    assert max(map(len, narrow)) <= 80
    piped = mtrl("config", "list", cwd=tmp_path).stdout
    assert max(map(len, piped.splitlines())) > 80
    assert " ".join(narrow).split() == piped.split()


def test_errors_and_their_hints_are_broken_between_words_on_a_terminal(tmp_path: Path) -> None:
    wrong = ("train", "--dry-run", "train.stepz=1", "group.siz=2", "budget.max_turn=4")
    code, written = on_terminal(command(*wrong), cwd=tmp_path, environ=environment(), size=(40, 50))
    piped = mtrl(*wrong, cwd=tmp_path)
    assert code == piped.returncode == 2
    assert max(map(len, piped.stderr.splitlines())) > 50
    shown = written.replace("\r\n", "\n")
    assert shown.split() == piped.stderr.split()
    assert all(len(line) <= 50 or len(line.split()) == 1 for line in shown.splitlines())


def test_a_dry_run_is_broken_between_words_on_a_terminal(tmp_path: Path) -> None:
    narrow = lines("train", "--dry-run", cwd=tmp_path, columns=60)
    piped = mtrl("train", "--dry-run", cwd=tmp_path).stdout
    assert max(map(len, piped.splitlines())) > 60
    assert " ".join(narrow).split() == piped.split()
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in narrow)


def test_an_episode_is_broken_between_words_on_a_terminal(tmp_path: Path) -> None:
    """Below its label; a word that is longer than the line is left to the terminal."""
    said, answer = "I hit, as nineteen is far from here. " * 3, f"{'A' * 50} and a king. " * 2
    call = {"name": "play", "answer": answer, "reward": -1.0, "done": True, "error": False}
    turn = {"text": said, "tokens": 1, "calls": [{**call, "arguments": '{"action": "hit"}'}]}
    opening = [{"role": "user", "content": said}]
    rollout(tmp_path / "runs", episode(0, 0, turns=[turn], opening=opening))
    asked = ("trajectory", "last", "0/0")
    environ = environment(NO_COLOR="1")
    _, written = on_terminal(command(*asked), cwd=tmp_path, environ=environ, size=(40, 48))
    piped = mtrl(*asked, cwd=tmp_path)
    shown = written.replace("\r\n", "\n").splitlines()
    assert " ".join(shown).split() == f"{piped.stderr} {piped.stdout}".split()
    assert all(len(line) <= 48 or len(line.split()) == 1 for line in shown)
    at = next(number for number, line in enumerate(shown) if line.startswith("assistant  I hit"))
    assert shown[at + 1].startswith(" " * 11 + "I hit, as")
