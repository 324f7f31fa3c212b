"""A run's files survive a kill in the middle of a write."""

import json
import math
import re
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.runs.files import DamagedFile, RecordFile, read_records, write_document
from mtrl_cli.runs.folder import RunFolder
from mtrl_cli.runs.ledger import Ledger, read_ledger

RECORDS = [{"step": 1, "text": "ü\n"}, {"step": 2, "text": ""}]


@given(cut=st.integers(0, 60))
def test_a_torn_last_line_is_neither_read_nor_in_the_way(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    file = RecordFile(path)
    for record in RECORDS:
        file.append(record, durable=True)
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole))])

    lines = path.read_bytes().split(b"\n")[:-1]
    kept = [json.loads(line) for line in lines]
    assert list(read_records(path)) == kept

    again = RecordFile(path)
    again.append({"step": 3})
    again.close()
    assert list(read_records(path)) == [*kept, {"step": 3}]


@pytest.mark.parametrize("damage", [b"{", b"[1]", b"\xff", b'{"a":"\n"}', b"\0\0", b""])
def test_a_damaged_line_names_the_file_and_itself(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"a":1}\n' + damage + b'\n{"a":2}\n')
    records = read_records(path)
    assert next(records) == {"a": 1}
    with pytest.raises(
        DamagedFile,
        match=f"{re.escape(str(path))} is damaged: line 2 .*mtrl verify {tmp_path.name} ",
    ):
        next(records)


def test_what_json_cannot_hold_is_refused_and_leaves_the_file_whole(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.append({"step": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.append({"reward": math.nan})
    file.append({"step": 2})
    file.close()
    assert list(read_records(file.path)) == [{"step": 1}, {"step": 2}]


def test_a_document_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_document(path, "old")
    write_document(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_the_ledger_tells_where_each_entry_stands(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.borrow("run/server_model-1", "requested", kind="server_model")
    ledger.call("a1/optim_step/3", "intent", seq=3, digest="d")
    ledger.borrow("run/server_model-1", "held", id="model-7")
    ledger.call("a1/optim_step/3", "accepted", request="r-9")
    ledger.close()
    model, step = read_ledger(tmp_path / "ledger.jsonl")
    assert (model.entry, model.state, model.open) == ("borrow", "held", True)
    assert (model.facts["kind"], model.facts["id"]) == ("server_model", "model-7")
    assert (step.entry, step.state, step.open) == ("call", "accepted", True)
    assert (step.facts["seq"], step.facts["request"]) == (3, "r-9")


def test_a_run_folder_is_private_and_latest_points_at_the_newest(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "runs", "one", "train", "name: one\n")
    second = RunFolder.create(tmp_path / "runs", "two", "train", "name: two\n")
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    assert (tmp_path / "runs" / "latest").resolve() == second.path.resolve()
    second.end("failed", "why")
    state = json.loads((second.path / "run.json").read_text())
    assert (state["status"], state["reason"], state["attempt"]) == ("failed", "why", 1)
    assert state["ended"] >= state["created"]
    first.end("finished", None)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "commits.jsonl")
    records.append({"step": 0}, durable=True)
    document = tmp_path / "run.json"
    write_document(document, "{}\n")
    with full_disk(20):
        with pytest.raises(OSError, match="File too large") as error:
            records.append({"step": 1, "text": "x" * 100}, durable=True)
        assert error.value.filename == str(tmp_path / "commits.jsonl")
        with pytest.raises(OSError, match="File too large") as error:
            write_document(document, "x" * 100)
        assert error.value.filename == str(document)
    assert document.read_text() == "{}\n"
    assert list(read_records(tmp_path / "commits.jsonl")) == [{"step": 0}]
    records.close()
