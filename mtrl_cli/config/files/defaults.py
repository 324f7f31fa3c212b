"""The defaults list of an experiment's file: what mtrl adds to it, refuses in it, and says of it.

Hydra composes its own groups (launcher, logging, …) along with the experiment's. mtrl runs no
Hydra application, so that an option of theirs would change nothing: it is refused.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.files import places
from mtrl_cli.config.files.lines import Written, written
from mtrl_cli.config.keys import nearest

PRIMARY = "mtrl_experiment"
"""Under this name the experiment's file is handed to Hydra; no file of a user is called so."""

HYDRAS_OWN = "is Hydra's own configuration, and mtrl does not run as a Hydra application"

_UNUSED = (
    "output",
    "launcher",
    "sweeper",
    "help",
    "hydra_help",
    "hydra_logging",
    "job_logging",
    "env",
)
"""Groups of Hydra's own configuration that only an application of Hydra's has a use for."""


def refuse_hydras_own(node: Mapping[str, Any], file: Path) -> None:
    """Refuse what a file sets of Hydra itself: as a section, or in its defaults list.

    Raises:
        ConfigError: naming it, and where it stands.
    """
    hint = "the run folder is run.dir, further folders of YAML files are --config-dir"
    if "hydra" in node:
        raise ConfigError(
            f"hydra: {HYDRAS_OWN}", at=_first(file, lambda one: one.key == "hydra"), hint=hint
        )
    listed = node.get("defaults")
    entries = listed if isinstance(listed, list) else []
    for entry in (str(key) for one in entries for key in (one if isinstance(one, dict) else [one])):
        if entry.split()[-1:] and entry.split()[-1].lstrip("/").startswith("hydra/"):
            raise ConfigError(
                f"{entry}: {HYDRAS_OWN}",
                at=_first(file, partial(_is_entry, entry)),
                hint="take it out of the defaults list; several runs are --multirun",
            )


def without_hydras_own(node: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's file, which also says that Hydra need not compose its own `_UNUSED` groups:
    they are more files than an experiment has, and a third of the time."""
    listed = node.get("defaults", ["_self_"])
    if not isinstance(listed, list):
        return dict(node)  # Hydra says what is wrong with it
    unused = [{f"override hydra/{group}": None} for group in _UNUSED]
    return {**node, "defaults": [*listed, *unused]}


def missing_file(
    error: MissingConfigException, node: Mapping[str, Any], file: Path, dirs: tuple[Path, ...]
) -> ConfigError:
    """A defaults list names a file that does not exist."""
    name = str(error.missing_cfg_file)
    group, slash, option = name.rpartition("/")
    # Hydra names the file whose list is overridden; the wrong word may stand in the experiment's.
    own = option in str(node.get("defaults"))
    at = file if own else _file_meant(str(error), file, dirs)
    available = list(error.options or places.groups(dirs).get(group, []))
    if not slash:
        available = [path.stem for folder in dirs for path in folder.glob("*.yaml")]
    near = nearest(option, available)
    guess = f"did you mean {near}? " if near else ""
    return ConfigError(
        f"{group!r} has no option {option!r}" if slash else f"no file {name!r} to build on",
        at=_first(at, lambda one: _is_entry(option, one) or _is_entry(name, one)),
        hint=f"{guess}available: {', '.join(sorted(set(available))) or 'none'}",
    )


def without_self(error: UserWarning, file: Path, dirs: tuple[Path, ...]) -> ConfigError:
    """A defaults list that lacks ``_self_``."""
    return ConfigError(
        "the defaults list does not say where the file's own values go",
        at=_first(_file_meant(str(error), file, dirs), lambda one: one.key == "defaults"),
        hint="end the defaults list with `- _self_`",
    )


def named_file(message: str, file: Path, dirs: tuple[Path, ...]) -> str:
    """The file that a message of Hydra is about (``In 'NAME': …``), else the experiment's."""
    return places.named(_file_meant(message, file, dirs))


def _file_meant(message: str, file: Path, dirs: tuple[Path, ...]) -> Path:
    if message.startswith("In '"):
        name = message.split("'")[1]
        if name != PRIMARY and (found := places.find(dirs, name)):
            return found
    return file


def _is_entry(word: str, one: Written) -> bool:
    """Whether a defaults list has ``word`` there: an entry, or its group or option."""
    return one.key.startswith("defaults[") and (one.text == word or one.key.endswith(f"].{word}"))


def _first(file: Path, meant: Callable[[Written], bool]) -> str:
    """A file, with the first line that is meant."""
    return places.named(file, next((one.line for one in written(file) if meant(one)), None))
