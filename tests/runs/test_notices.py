"""What a person is warned of stands in run.json, each attempt's first ones."""

import json
from pathlib import Path

from mtrl_cli.runs.folder import RunFolder


def test_the_first_notices_of_each_attempt_are_kept_without_secrets(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x", "train", "", lambda text: text.replace("sk-1", "***"))
    for number in range(25):
        folder.notice(f"server said sk-1 {number}")
    folder.end("failed", None)
    again = RunFolder.reopen(folder.path, step=-1)
    again.notice("later")
    again.end("finished", None)
    told = json.loads((folder.path / "run.json").read_text())["notices"]
    assert told[:2] == [
        {"attempt": 1, "text": "server said *** 0"},
        {"attempt": 1, "text": "server said *** 1"},
    ]
    assert [one["attempt"] for one in told] == [1] * 20 + [2]
    assert told[-1]["text"] == "later"
