"""Relative paths in a configuration, made absolute where it is composed.

A run that is resumed, played or cancelled from another folder then finds what it was started with,
from its saved config.yaml alone. A relative path is looked for in the folder where mtrl was
started, then beside the YAML file that says it; one that is in neither stays as it is written, and
is refused where it is used. ``server.store`` need not be there yet: it is always of the folder
where mtrl was started. Links stay as written.
"""

import os.path
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtrl_cli.config.files import places
from mtrl_cli.config.sources import Sources, value_at

_STORE, _TOKENIZER, _FILES = "server.store", "server.tokenizer", "env.e2b.files"
_ENTRYPOINTS = ("task.entrypoint", "env.entrypoint", "env.app")


def anchor(container: dict[str, Any], sources: Sources) -> None:
    """Make the paths in ``container`` absolute."""
    for key in _keys(container):
        value = value_at(container, key)
        if isinstance(value, str) and value and not value.startswith(places.KEPT):
            above, _, last = key.replace("[", ".").replace("]", "").rpartition(".")
            node = value_at(container, above)
            node[int(last) if isinstance(node, list) else last] = _absolute(key, value, sources)


def _keys(container: dict[str, Any]) -> Iterator[str]:
    yield from (_STORE, _TOKENIZER, *_ENTRYPOINTS)
    files = value_at(container, _FILES)
    yield from (f"{_FILES}[{index}]" for index in range(len(files or ())))


def _absolute(key: str, value: str, sources: Sources) -> str:
    if key == _STORE:
        if os.path.isabs(value):  # noqa: PTH117
            return value
        here = os.getcwd().replace("${", "\\${")  # noqa: PTH109 - links stay as written
        return os.path.normpath(f"{here}/{value}")
    path, colon, name = value.rpartition(":") if key in _ENTRYPOINTS else (value, "", "")
    if not _is_path(key, path):
        return value
    for folder in _folders(key, value, sources):
        file = os.path.abspath(os.path.join(folder, path))  # noqa: PTH100, PTH118
        if os.path.exists(file):  # noqa: PTH110 - it raises of no text whatever
            # The file is there by this very name: a folder's `${…}` is no interpolation.
            return f"{file}{colon}{name}".replace("${", "\\${")
    return value


def _is_path(key: str, named: str) -> bool:
    """Whether it may be a file, and not the name of a module or of a packaged tokenizer."""
    ending = {_TOKENIZER: ".json"}.get(key, "." if key.startswith(_FILES) else ".py")
    return "/" in named or ending in named


def _folders(key: str, value: str, sources: Sources) -> Iterator[str | Path]:
    yield os.curdir
    if file := sources.origin(key, value).file:
        yield file.parent
