"""What Hydra could not merge, in words: the file and the line of its defaults list, what to write.

Hydra judges; its message tells which rule was broken, and the lists themselves tell where. A
message that is not known here is told as Hydra wrote it, behind ``cannot compose``.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import yaml
from hydra.errors import MissingConfigException

from mtrl_cli.config.errors import ConfigError, together
from mtrl_cli.config.files import places
from mtrl_cli.config.files.defaults import PRIMARY, SELF, Entry
from mtrl_cli.config.files.lines import line_of
from mtrl_cli.config.files.reading import first_line, yaml_error
from mtrl_cli.config.keys import nearest
from mtrl_cli.config.overrides import CheckedOverride
from mtrl_cli.config.sources import Source, chain, sources_of

_TWICE = re.compile(
    r"Multiple values for ([^\s@]+?)(?:@\S*)?\. |^([^\s@]+)\S* appears more than once"
)
_NOT_CHOSEN = re.compile(r"Could not override '([^'@]+)")
_BEFORE = re.compile(r"Override '([^'@ ]+).*' is defined before")
_NOWHERE = re.compile(r"Error resolving interpolation '(.+?)'")
_OPEN = re.compile(r"You must specify '([^'@]+)")


def unmerged(
    error: Exception, file: Path, dirs: tuple[Path, ...], overrides: tuple[CheckedOverride, ...]
) -> ConfigError:
    """Why an experiment's ``file`` and what it builds on could not be merged.

    Raises:
        ConfigError: one of the files cannot be read by itself.
    """
    if isinstance(error, yaml.YAMLError):
        return yaml_error(error, file)
    if isinstance(error, RecursionError):
        return _of_list(file, "its defaults lead back to itself")
    sources = sources_of(file, dirs, overrides)
    said = str(error)
    meant = _file_meant(said, file, dirs)
    if isinstance(error, MissingConfigException):
        return _missing(str(error.missing_cfg_file), sources, meant, dirs)
    if isinstance(error, UserWarning):
        return _of_list(
            meant,
            "the defaults list does not say where the file's own values go",
            f"end the defaults list with `- {SELF}`",
        )
    if found := _TWICE.search(said):
        return _twice(found[1] or found[2], sources, meant, dirs)
    if found := _NOT_CHOSEN.search(said):
        return _not_chosen(found[1], sources, meant, dirs)
    if found := _BEFORE.search(said):
        meant, entry = _overriding(found[1], sources) or (meant, None)
        told = f"`override {found[1]}` stands before an entry that is no override"
        return _of_list(meant, told, "put it behind all of them", entry)
    if found := _NOWHERE.search(said):
        told = f"`{found[1]}` in a defaults list stands for the option of no group"
        return _of_list(meant, told, "write the name of a file or of an option")
    if found := _OPEN.search(said):
        told = f"no option of {found[1]!r} is chosen"
        return _of_list(meant, told, f"add {found[1]}=OPTION; {_options(found[1], dirs)}")
    if wrong := [error for source in sources for error in source.wrong_shapes()]:
        return together(wrong)
    return _of_list(meant, f"cannot compose: {first_line(error).replace(PRIMARY, file.name)}")


def _missing(name: str, sources: Sequence[Source], file: Path, dirs: Sequence[Path]) -> ConfigError:
    """A defaults list names a file that does not exist."""
    group, slash, option = name.rpartition("/")
    entry = None
    for source, one in _entries(sources):
        # Of several options the path is the last one's.
        unclear = "${" in one.told or option in one.told
        if name == one.path or (one.group == group and unclear):
            file, entry = source.file, one
            break
    if slash and not _is_folder(group, dirs):
        return _of_list(file, f"there is no config group {group!r}", _groups(group, dirs), entry)
    told = f"no file {name!r} to build on"
    if not slash:
        return _of_list(file, told, _options("", dirs, name), entry)
    if entry and not entry.group and places.find(dirs, option):
        hint = f"write `/{option}`: without `/` it is looked for in {group}/"
        return _of_list(file, told, hint, entry)
    told = f"{group!r} has no option {option!r}"
    return _of_list(file, told, _options(group, dirs, option), entry)


def _twice(name: str, sources: Sequence[Source], file: Path, dirs: tuple[Path, ...]) -> ConfigError:
    """Two entries choose an option of one group, or lead to one file."""
    for source in sources:
        leading = [one for one in source.defaults if name in _leads_to(one, dirs)]
        if len(leading) > 1:
            break
    else:
        return _of_list(file, f"{name} is chosen twice", "choose it once")
    first, second = leading[:2]
    told = f"`{first.told}` and `{second.told}` both choose {name}"
    if first.path == second.path and not first.group:
        told = f"`{first.told}` is in the defaults list twice"
    return _of_list(source.file, told, _once(name, first, second, dirs), second)


def _once(name: str, first: Entry, second: Entry, dirs: tuple[Path, ...]) -> str:
    """What to write for two entries that choose an option of the group ``name``."""
    if first.path == second.path:
        return "keep the last one"
    for one, other in ((first, second), (second, first)):
        if one.group:
            option = one.told.partition(": ")[2]
            return f"write `- override {name}: {option}`, behind `- {other.told}`"
        if one.path in _leads_to(other, dirs):
            return f"leave `{one.told}` out: `{other.told}` builds on it"
    return "build on one of them, and write here what else this experiment needs"


def _not_chosen(
    name: str, sources: Sequence[Source], file: Path, dirs: Sequence[Path]
) -> ConfigError:
    """An entry overrides a group of which nothing before it chose an option."""
    file, entry = _overriding(name, sources) or (file, None)
    if not _is_folder(name, dirs):
        plain = name.rpartition("/")[2]
        hint = f"write `override /{plain}`" if _is_folder(plain, dirs) else _groups(name, dirs)
        return _of_list(file, f"there is no config group {name!r}", hint, entry)
    hint = f"write `- {places.BASE}` before it, or `- {name}: OPTION` in its place"
    return _of_list(file, f"it builds on nothing that chooses {name!r}", hint, entry)


def _overriding(group: str, sources: Sequence[Source]) -> tuple[Path, Entry] | None:
    """The entry that overrides a group, and its file."""
    overriding = (one for one in _entries(sources) if one[1].override and one[1].group == group)
    return next(((source.file, entry) for source, entry in overriding), None)


def _entries(sources: Sequence[Source]) -> Iterator[tuple[Source, Entry]]:
    return ((source, one) for source in sources for one in source.defaults)


def _leads_to(entry: Entry, dirs: tuple[Path, ...]) -> set[str]:
    """The groups that an entry chooses an option of, and the files that it names, however far."""
    if entry.override:
        return set()
    if entry.group:
        return {entry.group}
    found = {entry.path}
    if file := places.find(dirs, entry.path):
        below = (one for _, one in _entries(list(chain(file, dirs))) if not one.override)
        found |= {one.group or one.path for one in below}
    return found


def _is_folder(group: str, dirs: Sequence[Path]) -> bool:
    return any((folder / group).is_dir() for folder in dirs)


def _groups(word: str, dirs: Sequence[Path]) -> str:
    return _available(word, places.groups(dirs))


def _options(group: str, dirs: Sequence[Path], word: str = "") -> str:
    """The files of a group; of the group ``""``, those to build on."""
    return _available(
        word, {one.stem for folder in dirs for one in (folder / group).glob("*.yaml")}
    )


def _available(word: str, names: Collection[str]) -> str:
    near = nearest(word, names)
    guess = f"did you mean {near}? " if near else ""
    return f"{guess}available: {', '.join(sorted(names)) or 'none'}"


def _of_list(
    file: Path, message: str, hint: str | None = None, entry: Entry | None = None
) -> ConfigError:
    at = places.named(file, line_of(file, entry.key if entry else "defaults"))
    return ConfigError(message, at=at, hint=hint)


def _file_meant(message: str, file: Path, dirs: Sequence[Path]) -> Path:
    """The file that a message of Hydra is about (``In 'NAME': …``), else the experiment's."""
    found = re.match(r"In '?([^':\n]+)'?:", message)
    return (found and found[1] != PRIMARY and places.find(dirs, found[1])) or file
