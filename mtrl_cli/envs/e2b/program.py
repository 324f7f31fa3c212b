"""What a sandbox is given: the worker, the game's module, and the files that it needs."""

import importlib.util
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mtrl_cli.config.files.places import named_file
from mtrl_cli.errors import UsageError

WORKER = "mtrl_worker.py"

_LARGEST = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """``files``: path in the sandbox, relative to its home → content."""

    files: Mapping[str, bytes]
    entrypoint: str
    """As the worker takes it."""
    params: str
    """Keyword arguments of the class, as JSON."""

    @property
    def command(self) -> str:
        """Runs the worker in place of the shell, so that a signal reaches it."""
        return f"exec python3 -u {WORKER} {shlex.join((self.entrypoint, self.params))}"


def load_program(
    entrypoint: str, files: Sequence[str], params: Mapping[str, Any] | None = None
) -> Program:
    """Read the game's module and its files.

    A module (``package.module``) keeps its place below its packages, a file that stands below the
    folder of the entrypoint's file keeps its place there, and any other file goes beside it.

    Raises:
        UsageError: one of them is not there, or all are too large.
    """
    place, _, name = entrypoint.rpartition(":")
    by_path = place.endswith(".py") or "/" in place
    what = f"env.entrypoint {entrypoint!r}"
    home = named_file(place, what).parent if by_path else Path.cwd()
    found = {WORKER: Path(__file__).with_name("worker.py").read_bytes()}
    main = _place(place, home, what)
    for where, path in [main, *(_place(file, home, f"env.e2b.files {file!r}") for file in files)]:
        found[where] = path.read_bytes()
    total = sum(map(len, found.values()))
    if total > _LARGEST:
        raise UsageError(
            f"env.e2b.files: {total:,} bytes, more than the {_LARGEST:,} that every sandbox is"
            " given at its start; put them into a template (env.e2b.template)"
        )
    try:
        given = json.dumps(dict(params or {}))
    except TypeError as error:
        raise UsageError(f"env.params: {error}; plain values only reach a sandbox") from error
    return Program(found, f"{main[0] if by_path else place}:{name}", given)


def _place(named: str, home: Path, what: str) -> tuple[str, Path]:
    """Where a file goes in the sandbox, and where it is here."""
    if "/" in named or (Path(named).suffix and not _is_module(named)):
        path = named_file(named, what)
        below = path.relative_to(home) if path.is_relative_to(home) else Path(path.name)
        return str(PurePosixPath(*below.parts)), path
    source = _source(named)
    if source is None:
        raise UsageError(f"{what}: there is no module {named!r} of one file, and no such file")
    parts = named.split(".")
    if source.name == "__init__.py":
        return str(PurePosixPath(*parts, "__init__.py")), source
    return str(PurePosixPath(*parts[:-1], f"{parts[-1]}.py")), source


def _is_module(named: str) -> bool:
    return not named.endswith(".py") and not Path(named).is_file()


def _source(module: str) -> Path | None:
    """The file of a module, which is not imported (its packages are)."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None
