"""Writing a run's files: whole documents by replacement, records by appending.

A document (`write_document`) is written beside its name, fsynced and renamed, so that a reader
sees the old one or the new one. A record file (`RecordFile`) is appended line by line; a torn
last line, left by a kill in the middle of a write, is cut off when the file is opened again. Any
other line that holds no record was damaged after it was written, and is not passed over: what it
said may be a sandbox that lives.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mtrl_cli.errors import MtrlError


class DamagedFile(MtrlError):  # noqa: N818
    """A file of a run does not hold what was written to it."""

    def __init__(self, path: Path, what: str) -> None:
        run = path.parent.parent if path.parent.name == "trajectories" else path.parent
        super().__init__(f"{path} is damaged: {what}; mtrl verify {run.name} says more")
        self.what = what


def write_document(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``, atomically and durably."""
    beside = path.with_name(path.name + ".tmp")
    try:
        with _naming(path), beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    beside.replace(path)
    sync_folder(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A write that fails, on a full disk for example, says which file it was."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


class RecordFile:
    """An append-only file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any], *, durable: bool = False) -> None:
        """Write one record and flush it; ``durable`` also waits for the disk.

        Raises:
            ValueError: a value is NaN or infinite, which JSON does not have.
        """
        line = json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"
        with _naming(self.path):
            self._file.write(line)
            self._file.flush()
        if durable:
            self.sync()

    def sync(self) -> None:
        """Wait until everything appended so far is on disk."""
        with _naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with _naming(self.path):  # what could not be written before is tried once more
            self._file.close()


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a file; a torn last line is not one.

    Raises:
        DamagedFile: another line is not one.
    """
    for number, line in whole_lines(path):
        yield record_of(line, path, number)


def file_at(path: Path) -> Path:
    """``path``, to be read. Raises: OSError: it is not a file: a pipe would be waited for."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return path


def refuse_pipe(path: Path) -> None:
    """Raises: DamagedFile: what is there is not a file."""
    try:
        file_at(path)
    except OSError as error:
        raise DamagedFile(path, str(error.strerror)) from error


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1; none where it is not there."""
    if not path.exists():
        return
    refuse_pipe(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield number, line


def record_of(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """The record in line ``number`` of ``path``.

    Raises:
        DamagedFile: it is not a JSON object.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise DamagedFile(path, f"line {number} is not a JSON object")
    return record


def redacted(node: Any, redact: Callable[[str], str]) -> Any:
    """A copy of a JSON value with every text in it passed through ``redact``."""
    if isinstance(node, str):
        return redact(node)
    if isinstance(node, Mapping):
        return {key: redacted(value, redact) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [redacted(value, redact) for value in node]
    return node


def sync_folder(folder: Path) -> None:
    """Wait until what was renamed into ``folder`` is on disk under its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(path, whole)
