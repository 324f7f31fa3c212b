"""The sample of trajectories in a report: its size does not grow with the run's."""

from pathlib import Path

import pytest

from mtrl_cli.report import episodes
from tests.report.folder import RUN, lengthen, make_run
from tests.report.test_report import report


def test_of_a_long_trajectory_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    lengthen(path, tokens=9001, said="a" * 3000 + "b" * 3000)
    one = report(tmp_path, RUN).episodes[0]
    assert one["gap"] == [2000, 7001]
    assert one["ids"] == [200 + n % 400 for n in (*range(2000), *range(7001, 9001))]
    assert one["sampled"] == 8999
    # Tokens 0 and 1 are the prompt's: the logprob of token n is that of sampled token n − 2.
    told = [round(-0.001 * ((n - 2) % 1000), 4) for n in (*range(2, 2000), *range(7001, 9001))]
    assert one["logprobs"] == told
    said = one["turns"][0]["text"]
    assert said == "a" * 2000 + "\n… 2,000 characters …\n" + "b" * 2000


def test_all_trajectories_together_have_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "TOKENS", 800)
    monkeypatch.setattr(episodes, "CHARACTERS", 1600)
    lengthen(make_run(tmp_path), tokens=5000, said="z" * 5000)
    lengthen(make_run(tmp_path, run="20261129-120001-cafe"), tokens=5000, said="z" * 5000)
    shown = report(tmp_path, RUN).episodes
    assert [len(one["ids"]) for one in shown] == [100] * 8
    # Each trajectory has two sayings: the model's and the answer to its call.
    assert [one["turns"][0]["text"].count("z") for one in shown] == [100] * 8
    # Two runs on one page share it.
    assert [len(one["ids"]) for one in report(tmp_path, RUN, "cafe").episodes] == [50] * 8


def test_tokens_without_a_text_are_told_by_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, overrides=("server.tokenizer=/nowhere/tokenizer.json",))
    page = report(tmp_path, RUN)
    assert page.words == {}
    assert "Tokens are shown as ids: " in page.text
