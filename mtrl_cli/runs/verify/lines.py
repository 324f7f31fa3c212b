"""Reading a run's files for a verification: every line with its number, nothing taken on trust.

A record file may end in a line without an end, which a kill leaves; it was not written. Any other
line that is not a JSON object was damaged. A trajectory file is written whole and renamed, so all
of it must be there.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.runs.files import file_at
from mtrl_cli.runs.verify.report import Report


@dataclass(frozen=True, slots=True)
class Line:
    """One record and where it stands."""

    number: int
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line of a trajectory file; ``record`` is None where it is not a JSON object."""

    number: int
    text: bytes
    record: dict[str, Any] | None


def read_lines(folder: Path, name: str, report: Report) -> list[Line]:
    """The records of ``folder/name``; what is no record is a finding."""
    try:
        data = file_at(folder / name).read_bytes()
    except OSError as error:
        report.found(name, None, f"cannot be read: {error.strerror}")
        return []
    *whole, torn = data.split(b"\n")
    if torn:
        report.notes.append(f"{name}: its last line has no end, so it counts as not written")
    lines = []
    for number, text in enumerate(whole, 1):
        record = json_object(text)
        if record is None:
            report.found(name, number, "is not a JSON object")
        else:
            lines.append(Line(number, record))
    return lines


def read_gzip_lines(folder: Path, name: str, report: Report) -> Iterator[RawLine]:
    """The lines of a gzipped file, as far as it can be read; a damaged end is a finding."""
    number = 0
    try:
        with gzip.open(folder / name, "rb") as file:
            for number, text in enumerate(file, 1):
                record = json_object(text)
                if record is None:
                    report.found(name, number, "is not a JSON object")
                yield RawLine(number, text, record)
    except EOFError:
        report.found(name, number + 1, "the file ends in the middle: it was cut short")
    except (OSError, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        report.found(name, number + 1, f"cannot be read from here: {why}")


def json_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object that ``text`` is; NaN and infinities are not JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> float:
    raise ValueError(constant)
