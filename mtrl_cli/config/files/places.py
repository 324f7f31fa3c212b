"""Where YAML files are found: a plain directory walk, without Hydra.

The first folder that has a file wins: ``--config-dir`` folders as given, the folder of an
experiment file given by its path, ``./conf``, the packaged files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mtrl_cli.config.errors import ConfigError

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
    given = [Path(folder).expanduser() for folder in config_dirs]
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
    """The file of an experiment or of a group's option (``env/openenv``)."""
    for folder in dirs:
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
    return None


def named(path: Path, line: int | None = None) -> str:
    """A YAML file as `shown`, but one that comes with mtrl by its name among those; and a line."""
    told, number = shown(path), "" if line is None else f":{line}"
    packaged = packaged_conf()
    if Path(told).is_absolute() and path.is_relative_to(packaged):
        return f"{path.relative_to(packaged)}{number} (packaged)"
    return f"{told}{number}"


def shown(path: Path) -> str:
    """A path as short as a user would write it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def looked_for(path: str) -> str:
    """What to add to the message that a ``path`` of a configuration leads nowhere."""
    if path.startswith(KEPT):
        return ""
    return "; a relative path is looked for here, and one in a YAML file also beside that file"
