"""Which file ``conf=`` means.

A value with ``/``, ``.yaml`` or ``.yml`` is a file, or a run's folder, which stands for the file
``config.yaml`` in it; every other one is the name of an experiment in one of the folders. What is
neither is told with the file or the name that was probably meant.
"""

from collections.abc import Sequence
from pathlib import Path

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.files import places
from mtrl_cli.config.keys import nearest

_FORMS = "conf=NAME chooses an experiment by its name, conf=FILE.yaml a file"
_INSTEAD = {
    "a folder": "conf=FOLDER needs a config.yaml in it, as a run's folder has; else name the file",
    "a pipe": "an experiment's file is read more than once: save it, and name that file",
}
"""What to write where no file stands, but this."""


def locate(asked: str, config_dirs: Sequence[str | Path]) -> tuple[Path, tuple[Path, ...]]:
    """The experiment's file, and the folders to search for what it builds on.

    Raises:
        ConfigError: there is no such experiment or file; the hint names what was probably meant.
    """
    if "/" in asked or asked.endswith((".yaml", ".yml")):
        file = _by_path(asked, places.search_dirs(config_dirs))
        return file, places.search_dirs(config_dirs, beside=file)
    dirs = places.search_dirs(config_dirs)
    found = places.find(dirs, asked)
    if found is None:
        names = places.experiments(dirs)
        near = _exact_file(asked) or nearest(asked, names)
        guess = f"did you mean conf={near}? " if near else ""
        if "," in asked and all(name in names for name in asked.split(",")):
            guess = "--multirun runs each of them; "
        raise ConfigError(
            f"no experiment {asked!r}",
            at=f"conf={asked}",
            hint=f"{guess}available: {', '.join(names)}",
        )
    return found, dirs


def _exact_file(name: str) -> str | None:
    """A file of this folder that a name without its ending means, as ``conf=`` takes it."""
    endings = (".yaml", ".yml")
    return next((f"{name}{end}" for end in endings if Path(f"{name}{end}").is_file()), None)


def _by_path(asked: str, dirs: Sequence[Path]) -> Path:
    path = places.at_home(asked)
    candidates = (path, path.with_name(f"{path.name}.yaml"), path / "config.yaml")
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    told, hint = f"no file {asked!r}", f"{_meant_file(path, dirs)}{_FORMS}"
    for candidate in reversed(candidates):
        if instead := places.not_a_file(candidate):
            told = f"{str(candidate)!r} is {instead}, not a file"
            hint = _INSTEAD.get(instead, _FORMS)
            break
    raise ConfigError(told, at=f"conf={asked}", hint=hint)


def _meant_file(path: Path, dirs: Sequence[Path]) -> str:
    """The file or experiment that a path was probably meant to be, as a question."""
    if near := _beside(path.parent, path.stem):
        return f"did you mean conf={near}? "
    if near := nearest(path.stem, places.experiments(dirs)):
        return f"did you mean conf={near}? "
    return ""


def _beside(folder: Path, name: str) -> str | None:
    """The YAML file of a folder whose name is ``name`` or next to it, as ``conf=`` takes it."""
    found = [*folder.glob("*.yml"), *folder.glob("*.yaml")]
    files = {file.stem: file for file in found if file.is_file()}
    near = nearest(name, files)
    return str(files[near]) if near else None
