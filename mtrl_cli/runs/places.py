"""Where mtrl keeps what outlives a run."""

import os
import shlex
from pathlib import Path

from mtrl_cli.errors import UsageError

DEFAULT_RUNS = "runs"


def default_store() -> Path:
    """The user's folder of weights: ``$MTRL_HOME/store``, or below the XDG data folder."""
    home = os.environ.get("MTRL_HOME")
    if home:
        return Path(home).expanduser() / "store"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "mtrl" / "store"


def store_of(named: str | None) -> Path:
    """The folder that ``server.store`` names; None is the user's own."""
    return default_store() if named is None else Path(named).expanduser()


def check_runs_dir(runs: str) -> None:
    """See that run folders can be made under ``run.dir``, without making anything.

    Raises:
        UsageError: something that is not a folder is in the way, or writing is not allowed.
    """
    if "\0" in runs:
        raise UsageError(f"run.dir: {runs!r} cannot be a folder's name")
    path = Path(runs)
    try:
        # The nearest folder that is there: what is missing below it would be made.
        base = next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))
        if not base.is_dir():
            raise UsageError(f"run.dir: {runs!r} cannot be a folder: {str(base)!r} is a file")
        if not os.access(base, os.W_OK | os.X_OK) or _read_only(base):
            made = "be used" if base == path else "be made"
            raise UsageError(
                f"run.dir: {runs!r} cannot {made}: {str(base)!r} is not writable; choose another"
                " folder: run.dir=FOLDER"
            )
    except OSError as error:
        raise UsageError(f"run.dir: {runs!r} cannot be used: {error.strerror}") from error


def require_runs_dir(runs: Path) -> None:
    """See that a folder which the user names is there; the default one may not be there yet.

    Raises:
        UsageError: it is not.
    """
    if runs != Path(DEFAULT_RUNS) and not runs.is_dir():
        raise UsageError(f"--runs-dir: there is no folder {str(runs)!r}")


def runs_dir_option(runs: Path) -> str:
    """What a command that is to find a run in ``runs`` ends with; nothing for the default."""
    return "" if runs == Path(DEFAULT_RUNS) else f" --runs-dir {shlex.quote(str(runs))}"


def _read_only(folder: Path) -> bool:
    """Whether the kernel itself makes the files here, so that even root can make none."""
    return folder.resolve().is_relative_to("/proc") or folder.resolve().is_relative_to("/sys")
