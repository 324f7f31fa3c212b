"""What a shell offers at TAB: experiments, group options, keys, words to choose from, runs.

Typer's mechanism asks; these functions answer from a walk over the folders and the schema, without
Hydra. bash breaks words at ``=`` and hands over the pieces: they are put together again, and only
what follows the last break is given back. zsh and fish want the whole word.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_BREAKS = "=:"
"""Where bash ends a word (of ``COMP_WORDBREAKS``, what occurs in overrides)."""
_YAML = (".yaml", ".yml")


def complete_override(incomplete: str) -> list[str]:
    """Overrides that begin as what stands before the cursor."""
    word, kept = _whole_word(incomplete)
    return [offer[kept:] for offer in _offers(word)]


def complete_run(incomplete: str) -> list[str]:
    """Runs of the folder that the command line names, the newest first."""
    from mtrl_cli.runs.registry import run_names

    names = ["last", *run_names(_runs_dir())]
    return [name for name in names if name.startswith(incomplete)]


def complete_format(incomplete: str) -> list[str]:
    """What ``mtrl export --format`` takes."""
    from mtrl_cli.export import FORMATS

    return [form for form in FORMATS if form.startswith(incomplete)]


def _offers(word: str) -> Iterator[str]:
    """The overrides that begin with ``word``. A single one that is not finished is followed
    further, as the shell would put a space behind it."""
    found = sorted(set(_matching(word, _candidates(word))))
    while len(found) == 1 and found[0] != word and found[0].endswith(("=", ".", "/")):
        word = found[0]
        further = sorted(set(_matching(word, _candidates(word))))
        if not further:
            break
        found = further
    yield from found


def _matching(word: str, candidates: Iterable[str]) -> Iterator[str]:
    return (candidate for candidate in candidates if candidate.startswith(word))


def _candidates(word: str) -> Iterator[str]:
    from mtrl_cli.config.files import places
    from mtrl_cli.config.keys import choices_of, schema_keys

    given = [Path(folder).expanduser() for folder in _values_of("--config-dir")]
    dirs = places.search_dirs([folder for folder in given if folder.is_dir()])
    key, equals, value = word.partition("=")
    mark = key[: len(key) - len(key.lstrip("+~"))]
    key = key.lstrip("+~")
    groups = places.groups(dirs)
    if equals:
        offered = groups.get(key, [])
        if key == "conf":
            offered = [*places.experiments(dirs), *(_files(value) if value else ())]
        if key == "policy":
            from mtrl_cli.runs.policies import policy_names

            offered = ["last", *policy_names(_runs_dir())]
        words = choices_of(key)
        if words == ["null"]:
            words = []  # the shell would write it at once, where any text may stand
        yield from (f"{mark}{key}={option}" for option in (*offered, *words))
        return
    yield from ("conf=", *(f"{mark}{group}=" for group in groups))
    for name, kind in schema_keys().items():
        section = name.rpartition(".")[0]
        if section and not key.startswith(f"{section}."):
            continue  # offered once its section is typed
        yield f"{mark}{name}{'.' if kind == 'section' else '='}"


def _files(begun: str) -> Iterator[str]:
    """The YAML files and the folders beside what is begun; those that are hidden when asked for."""
    folder, slash, name = begun.rpartition("/")
    try:
        found = list(Path(f"{folder}{slash}").expanduser().iterdir())
    except (OSError, RuntimeError):  # RuntimeError: a user who has no home
        return
    for one in found:
        if one.name.startswith(".") <= name.startswith("."):
            if one.is_dir():
                yield f"{folder}{slash}{one.name}/"
            elif one.suffix in _YAML:
                yield f"{folder}{slash}{one.name}"


def _whole_word(incomplete: str) -> tuple[str, int]:
    """The word that the cursor is in, and how many characters of it bash has set aside."""
    if "COMP_WORDS" not in os.environ:
        return incomplete, 0
    word = ""
    for piece in _typed():
        breaks = piece and set(piece) <= set(_BREAKS)
        joined = word and (breaks or word[-1] in _BREAKS)
        word = word + piece if joined else piece
    kept = max(word.rfind(mark) for mark in _BREAKS) + 1
    return word, kept


def _typed() -> list[str]:
    """The words before the cursor and the one that it is in."""
    if "COMP_WORDS" not in os.environ:
        return os.environ.get("_TYPER_COMPLETE_ARGS", "").split()
    words = os.environ["COMP_WORDS"].split("\n")
    return words[: int(os.environ.get("COMP_CWORD", len(words))) + 1]


def _runs_dir() -> Path:
    return Path([*_values_of("--runs-dir"), "runs"][0]).expanduser()


def _values_of(option: str) -> list[str]:
    words = _typed()
    return [after for word, after in itertools.pairwise(words) if word == option]
