"""`mtrl verify` as a person and a script see it."""

import json
import shutil
from pathlib import Path

from tests.cli.processes import mtrl
from tests.verify.runs import step_file, text_of, write_text


def test_a_clean_run_a_damaged_one_and_none(resumed_run: Path, copy: Path) -> None:
    clean = mtrl("verify", resumed_run.name, "--runs-dir", str(resumed_run.parent), cwd=copy.parent)
    assert (clean.returncode, clean.stderr) == (0, "")
    head, *rest = clean.stdout.splitlines()
    assert head.startswith(f"{resumed_run.name} (finished): ")
    assert "25 trajectories" in head
    assert rest == ["nothing is wrong"]

    write_text(copy, step_file(1), text_of(copy, step_file(1)).replace(b"-0.25", b"-0.26", 1))
    damaged = mtrl("verify", "last", "--runs-dir", str(copy.parent), "--json", cwd=copy.parent)
    assert damaged.returncode == 1
    told = json.loads(damaged.stdout)
    assert told["run_id"] == copy.name
    assert told["checked"]["trajectories"] == 25
    assert told["findings"] == [
        {
            "file": step_file(1),
            "line": 1,
            "what": "is not as it was written (its sha256 differs)",
        }
    ]

    none = mtrl("verify", "9999", "--runs-dir", str(copy.parent), cwd=copy.parent)
    assert none.returncode == 3
    assert "no run '9999'" in none.stderr


def test_control_characters_in_a_file_do_not_reach_the_terminal(copy: Path) -> None:
    text = text_of(copy, step_file(1)).replace(b'"stop":"done"', b'"stop":"\\u001b[2J"', 1)
    write_text(copy, step_file(1), text)
    found = mtrl("verify", "last", "--runs-dir", str(copy.parent), cwd=copy.parent)
    assert found.returncode == 1
    assert "\x1b" not in found.stdout


def test_without_its_task_a_run_is_checked_as_far_as_it_goes(copy: Path) -> None:
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("counted_world:CountedTask", "counted:Gone"))
    shutil.rmtree(copy.parent / "latest", ignore_errors=True)
    found = mtrl("verify", copy.name, "--runs-dir", str(copy.parent), cwd=copy.parent)
    assert found.returncode == 0
    assert "note: tokens were not compared with the text: " in found.stdout
