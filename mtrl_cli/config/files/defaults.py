"""The defaults list of a file: its entries, read before Hydra reads them, and what Hydra gets.

An entry is ``_self_``, a file to build on (``blackjack``, ``env/e2b``), or an option of a config
group (``env: e2b``, ``override env: e2b``). Hydra speaks of every other one without its line.
A name is looked for in the folder of the file that says it, and from the top behind a ``/``.

Hydra composes its own groups (launcher, logging, …) along with the experiment's. mtrl runs no
Hydra application, so that an option of theirs would change nothing: it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.config.errors import ConfigError
from mtrl_cli.config.files import places
from mtrl_cli.config.files.lines import line_of
from mtrl_cli.config.secrets import masked
from mtrl_cli.config.wording import in_words

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

SELF = "_self_"
_KEYWORDS = ("override", "optional")
_SHOWN = 60
"""Characters of an entry in a message."""
_LONGEST = 255
"""Characters of a file's name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, as read; its names are those from the top."""

    told: str
    """As it is written."""
    index: int
    group: str = ""
    """Empty of a file, and of ``_self_``."""
    name: str = ""
    """The file to build on, or the group's option; empty of ``_self_``, and of no option."""
    package: str | None = None
    """The section that its values are in, where it names one (``NAME@SECTION``)."""
    override: bool = False

    @property
    def key(self) -> str:
        """Its place in the file, as `lines` has it."""
        return f"defaults[{self.index}]"

    @property
    def is_self(self) -> bool:
        return self.told == SELF

    @property
    def section(self) -> str:
        """The section that its values are in; empty at the top."""
        if self.package is not None:
            return self.package.removeprefix("_global_").removeprefix(".")
        return (self.group or self.name.rpartition("/")[0]).replace("/", ".")

    @property
    def path(self) -> str:
        """The file that it names, from the top and without its ending."""
        name = self.name.removesuffix(".yaml")
        return f"{self.group}/{name}" if self.group and name else name


def entries(values: Mapping[str, Any], file: Path, folder: str = "") -> list[Entry]:
    """The defaults list of ``file``, which holds ``values`` and is in ``folder`` from the top.

    Raises:
        ConfigError: it is no list, or one entry is none; with its line, and what to write.
    """
    listed = masked(values.get("defaults", []))
    if not isinstance(listed, list):
        first = listed if isinstance(listed, str) and listed.strip() else places.BASE
        raise ConfigError(
            f"defaults is a list, not {in_words(listed)}",
            at=places.named(file, line_of(file, "defaults")),
            hint=f"write `defaults: [{first}, {SELF}]`",
        )
    found: list[Entry] = []
    for index, item in enumerate(listed):
        try:
            read = _group if isinstance(item, dict) else _file
            entry = read(item, index, folder)
            _refuse_second(entry, found)
        except ConfigError as error:
            at = places.named(file, line_of(file, f"defaults[{index}]"))
            raise ConfigError(error.message, at=at, hint=error.hint) from None
        found.append(entry)
    return found


def refuse_hydras_own(node: Mapping[str, Any], listed: Sequence[Entry], file: Path) -> None:
    """Refuse what a file sets of Hydra itself: as a section, or in its defaults list.

    Raises:
        ConfigError: naming it, and where it stands.
    """
    if "hydra" in node:
        raise ConfigError(
            f"hydra: {HYDRAS_OWN}",
            at=places.named(file, line_of(file, "hydra")),
            hint="the run folder is run.dir, further folders of YAML files are --config-dir",
        )
    for entry in listed:
        if entry.group.startswith("hydra/") or entry.told.lstrip("/").startswith("hydra/"):
            raise ConfigError(
                f"{entry.told.partition(':')[0]}: {HYDRAS_OWN}",
                at=places.named(file, line_of(file, entry.key)),
                hint="take it out of the defaults list; several runs are --multirun",
            )


def without_hydras_own(node: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's file, which also says that Hydra need not compose its own `_UNUSED` groups:
    they are more files than an experiment has, and a third of the time."""
    unused = [{f"override hydra/{group}": None} for group in _UNUSED]
    return {**node, "defaults": [*node.get("defaults", [SELF]), *unused]}


def _refuse_second(entry: Entry, before: Sequence[Entry]) -> None:
    """Of two that override one group, the first would win."""
    for one in before:
        if entry.is_self and one.is_self:
            raise ConfigError(f"{SELF} is in the defaults list twice", hint="keep the last one")
        same = (entry.group, entry.package) == (one.group, one.package)
        if same and entry.override and one.override:
            raise ConfigError(
                f"`{one.told}` and `{entry.told}` override the same group", hint="keep one of them"
            )


def _file(item: Any, index: int, folder: str) -> Entry:
    name, at, package = item.partition("@") if isinstance(item, str) else ("", "", "")
    if item == SELF:
        return Entry(SELF, index)
    if not _is_name(name) or name.endswith("/") or name == "???":
        raise ConfigError(
            f"{in_words(item)} in a defaults list names no file to build on",
            hint=f"write `- NAME`, as in `- {places.BASE}`, or `- override GROUP: OPTION`",
        )
    if name.split()[0] in _KEYWORDS:
        group = [*name.split(), "GROUP"][1].rstrip(":")
        raise ConfigError(
            f"`{item:.{_SHOWN}}` chooses no option",
            hint=f"write `- {name.split()[0]} {group}: OPTION`, without quotes",
        )
    if name.startswith((".", "~/")):
        plain = Path(name).name.removesuffix(".yaml")
        raise ConfigError(
            f"`{item:.{_SHOWN}}` in a defaults list: a file to build on is named, not its path",
            hint=f"write `- {plain}`; it is looked for beside this file, then in ./conf and in the"
            " folders of --config-dir",
        )
    return Entry(item, index, name=_from_top(name, folder), package=package if at else None)


def _group(item: dict[Any, Any], index: int, folder: str) -> Entry:
    if len(item) != 1:
        pairs = " and ".join(f"`- {key}: {value}`" for key, value in item.items())
        raise ConfigError(
            f"an entry of a defaults list is one group and its option, not {in_words(item)}",
            hint=f"write {pairs}, each on its own line" if item else "take it out",
        )
    ((key, option),) = item.items()
    *before, last = str(key).split() or [""]
    name, at, package = last.partition("@")
    told = f"{key}: {option if isinstance(option, str) else in_words(option)}"
    group_is_named = isinstance(key, str) and _is_name(name) and name not in (*_KEYWORDS, SELF)
    keyed = " ".join([*before, last]) == key and all(word in _KEYWORDS for word in before)
    if not group_is_named or name.endswith("/") or not keyed:
        raise ConfigError(
            f"`{told:.{_SHOWN}}` in a defaults list names no config group",
            hint="write `- override GROUP: OPTION`, as in `- override env: e2b`",
        )
    options = option if isinstance(option, list) and option else [option]
    if option is not None and not all(map(_is_option, options)):
        raise ConfigError(
            f"{key} in a defaults list: an option is a name, not {in_words(option)}",
            hint=f"write `- {key}: NAME`",
        )
    group = _from_top(name, folder)
    chosen = options[-1] or ""  # of several, whose values the last one's replace
    return Entry(told, index, group, chosen, package if at else None, "override" in before)


def _is_option(item: Any) -> bool:
    return isinstance(item, str) and _is_name(item) and item != SELF


def _is_name(text: str) -> bool:
    """Whether a file could be called so."""
    return bool(text.strip()) and text.isprintable() and len(text) <= _LONGEST


def _from_top(name: str, folder: str) -> str:
    return f"{folder}/{name}".lstrip("/") if not name.startswith("/") else name.lstrip("/")
