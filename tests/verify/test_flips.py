"""Any single byte of what was trained: a flip in tokens, logprobs, spans or rewards is found."""

import gzip
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.runs import findings, step_file, text_of, write_text

STEP = 3
VALUES = re.compile(rb'"(?:tokens|logprobs|spans)":(\[.*?\])(?=,")|"reward":([^,]*)')


@pytest.fixture(scope="module")
def flipped(resumed_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose one file is damaged anew by each example."""
    return Path(shutil.copytree(resumed_run, tmp_path_factory.mktemp("flips") / resumed_run.name))


def value_bytes(text: bytes) -> list[int]:
    return [
        at
        for found in VALUES.finditer(text)
        for group in (1, 2)
        if found[group] is not None
        for at in range(*found.span(group))
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_flipped_bit_is_found_on_its_line(
    resumed_run: Path, flipped: Path, data: st.DataObject
) -> None:
    whole = text_of(resumed_run, step_file(STEP))
    places = value_bytes(whole)
    at = places[data.draw(st.integers(0, len(places) - 1), label="place")]
    bit = data.draw(st.integers(0, 7), label="bit")
    text = bytearray(whole)
    text[at] ^= 1 << bit
    write_text(flipped, step_file(STEP), bytes(text))
    line = whole.count(b"\n", 0, at) + 1
    found = findings(flipped, text=False)
    assert (step_file(STEP), line) in {(f.file, f.line) for f in found}
    assert gzip.decompress((flipped / step_file(STEP)).read_bytes()) == bytes(text)
