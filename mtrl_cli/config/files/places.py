"""Where YAML files are found: a plain directory walk, without Hydra.

The first folder that has a file wins: ``--config-dir`` folders as given, the folder of an
experiment file given by its path, ``./conf``, the packaged files.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.errors import UsageError

BASE = "config"
"""The file that experiments build on; not an experiment of its own."""

DEFAULT_EXPERIMENT = "blackjack"

KEPT = ("~", "$", "?", "/")
"""What a path in a configuration begins with that is not relative: a home, an interpolation, a
gap (``???``), the root."""


def packaged_conf() -> Path:
    """The files that come with mtrl: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def search_dirs(
    config_dirs: Sequence[str | Path] = (), *, beside: Path | None = None
) -> tuple[Path, ...]:
    """The folders to search, first one first. ``beside`` is an experiment file given by path.

    Raises:
        ConfigError: a folder given by the user does not exist.
    """
    given = [at_home(folder) for folder in config_dirs]
    for folder in given:
        if not folder.is_dir():
            raise ConfigError(
                f"no folder {str(folder)!r}",
                at=f"--config-dir {folder}",
                hint="give the folder that holds your experiments' YAML files",
            )
    beside_file = [beside.parent] if beside else []
    candidates = [*given, *beside_file, Path("conf"), packaged_conf()]
    existing = (folder.resolve() for folder in candidates if folder.is_dir())
    return tuple(dict.fromkeys(existing))


def experiments(dirs: Sequence[Path]) -> list[str]:
    """Names that ``conf=`` accepts."""
    found = {path.stem for folder in dirs for path in folder.glob("*.yaml") if path.is_file()}
    return sorted(found - {BASE})


def groups(dirs: Sequence[Path]) -> Mapping[str, list[str]]:
    """Config groups and the options of each."""
    found: dict[str, set[str]] = {}
    for folder in dirs:
        for path in filter(Path.is_file, folder.glob("*/*.yaml")):
            found.setdefault(path.parent.name, set()).add(path.stem)
    return {group: sorted(found[group]) for group in sorted(found)}


def find(dirs: Sequence[Path], name: str) -> Path | None:
    """The file of an experiment or of a group's option (``env/openenv``).

    Raises:
        ConfigError: something else stands in its place, which a file further on must not replace.
    """
    for folder in dirs:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
        if instead := not_a_file(path):
            raise ConfigError(
                f"{shown(folder)}/{name}.yaml is {instead}, not a file",
                hint="remove it, or put a file there",
            )
    return None


def named(path: Path, line: int | None = None) -> str:
    """A YAML file as `shown`, but one that comes with mtrl by its name among those; and a line."""
    told, number = shown(path), "" if line is None else f":{line}"
    packaged = packaged_conf()
    if Path(told).is_absolute() and path.is_relative_to(packaged):
        return f"{path.relative_to(packaged)}{number} (packaged)"
    return f"{told}{number}"


def at_home(path: str | Path) -> Path:
    """With ``~`` as a home; that of a user who is not there stays as written."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's own raises of such a user


def shown(path: Path) -> str:
    """A path as short as a user would write it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def named_file(named: str, where: str) -> Path:
    """The file that a configuration names by its path, absolute; ``where`` begins the message.

    Raises:
        UsageError: there is none, or something else stands there.
    """
    try:
        path = Path(os.path.realpath(at_home(named)))  # resolve() raises of a loop
        if path.is_file():
            return path
        instead = not_a_file(path)
    except (OSError, ValueError) as error:  # too long, a NUL
        raise UsageError(f"{where}: this cannot be a file's path ({error})") from error
    if instead:
        raise UsageError(f"{where}: {str(path)!r} is {instead}, not a file")
    elsewhere = "; a relative path is looked for here, and one in a YAML file also beside that file"
    also = "" if named.startswith(KEPT) else elsewhere
    raise UsageError(f"{where}: there is no file {str(path)!r}{also}")


def not_a_file(path: Path) -> str | None:
    """What stands where a file is looked for; None where nothing does, or a file."""
    if path.is_file():
        return None
    if path.is_dir():
        return "a folder"
    if path.exists():
        return "a pipe" if path.is_fifo() else "a socket or a device"
    return "a link that leads nowhere" if path.is_symlink() else None
