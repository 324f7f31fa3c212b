"""What makes a change of a trajectory file visible: the seal of a line, the digest of a file."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from mtrl_cli.runs.files import DamagedFile
from mtrl_cli.runs.trajectories import read_trajectories, seal_holds, sealed, write_trajectories
from tests.training.helpers import group_of


def test_a_file_has_the_digest_that_its_writing_returned(tmp_path: Path) -> None:
    path = tmp_path / "step-000001.jsonl.gz"
    digest = write_trajectories(path, [group_of(1.0, -1.0), group_of(0.0, 1.0, group=1)])
    text = gzip.decompress(path.read_bytes())
    assert hashlib.sha256(text).hexdigest() == digest
    assert [record["reward"] for record in read_trajectories(path)] == [1.0, -1.0, 0.0, 1.0]
    for line in text.splitlines(keepends=True):
        record = json.loads(line)
        seal = record.pop("sha256")
        plain = json.dumps(record, separators=(",", ":")).encode()
        assert hashlib.sha256(plain).hexdigest() == seal
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step-000001.jsonl.gz"
    write_trajectories(path, [group_of(1.0, -1.0)])
    whole = path.read_bytes()
    flipped = whole[:60] + bytes([whole[60] ^ 255]) + whole[61:]
    text = gzip.decompress(whole)
    no_record = gzip.compress(text + b"[]\n")
    other = gzip.compress(text.replace(b'"stop":', b'"stopped":', 1))
    for damaged in (whole[:4], whole[:-9], b"text" + whole, flipped, no_record, other):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match=re.escape(str(path))):
            list(read_trajectories(path))


@pytest.mark.parametrize("record", ['{"a":1}', '{"a":",\\"sha256\\":\\"x\\""}', '{"a":"é"}'])
def test_a_seal_holds_for_the_line_it_was_made_for_alone(record: str) -> None:
    line = sealed(record)
    assert json.loads(line).items() >= json.loads(record).items()
    assert seal_holds(line)
    for index in range(len(line)):
        changed = bytearray(line)
        changed[index] ^= 1
        assert not seal_holds(bytes(changed))
    assert not seal_holds(record.encode() + b"\n")
    assert not seal_holds(line[:-1])
