"""The store's folders as `mtrl store` goes through them, without a server's place among them.

Each folder is opened below the one that holds it, and no symbolic link is followed: what is listed
and what is removed lies in the store, also while somebody moves folders about. What is not as the
store makes it is left alone, and named. A listing writes nothing, so that a store which cannot be
written to, or has no room left, is listed like any other.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from mtrl_cli.local.store import KINDS, Checkpoint, Kind, Ref, file_of, is_model_id, listed

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_TORN = re.compile(r"\.[0-9a-f]{16}\.tmp")
_LINK = "is a symbolic link"

Left = Callable[[str, str], None]
"""Is told of what was left alone: its place, and why in words that follow the place."""


class Shelves:
    def __init__(self, root: Path, left: Left) -> None:
        self._root = root
        self._left = left

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Every checkpoint, in no order."""
        with self._models() as models:
            for model in self._model_ids(models):
                with self._folder(models, model) as folder:
                    if folder is not None:
                        for kind in KINDS:
                            with self._folder(folder, model, kind) as shelf:
                                if shelf is not None:
                                    yield from self._on(shelf, model, kind)

    def remove(self, refs: Collection[Ref], before: float) -> Iterator[Checkpoint]:
        """Remove the checkpoints that are there; each, once it is gone. One that cannot be removed
        is told as left.

        Args:
            before: Unix seconds. Of the models that lose a checkpoint those which have none left
                go, and half-written files, all made before then.
        """
        losing = {ref.model_id for ref in refs}
        with self._models() as models:
            for model in self._model_ids(models, tells=False):
                with self._folder(models, model, tells=False) as folder:
                    if folder is None:
                        continue
                    _sweep(folder, before)
                    for kind in KINDS:
                        with self._folder(folder, model, kind, tells=False) as shelf:
                            if shelf is not None:
                                _sweep(shelf, before)
                                yield from self._take(shelf, model, kind, refs)
                    if model in losing:
                        _forget(models, folder, model, before)

    @contextmanager
    def _models(self) -> Iterator[int]:
        """The folder of all models.

        Raises:
            OSError: there is none, or it is a symbolic link.
        """
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            models = os.open("models", _FOLDER, dir_fd=root)
        finally:
            os.close(root)
        try:
            yield models
        finally:
            os.close(models)

    def _model_ids(self, models: int, *, tells: bool = True) -> list[str]:
        with os.scandir(models) as entries:
            found = [(entry.name, entry.is_symlink()) for entry in entries]
        for name in [name for name, link in found if link and tells]:
            self._left(f"models/{name}", _LINK)
        return sorted(name for name, link in found if not link and is_model_id(name))

    @contextmanager
    def _folder(self, at: int, *way: str, tells: bool = True) -> Iterator[int | None]:
        """The folder at the end of ``way``, which is in ``at``; None where there is none."""
        found = None
        try:
            found = os.open(way[-1], _FOLDER, dir_fd=at)
        except FileNotFoundError:
            pass
        except OSError as error:
            if tells:
                self._left("/".join(("models", *way)), _why(at, way[-1], error))
        try:
            yield found
        finally:
            if found is not None:
                os.close(found)

    def _on(
        self, shelf: int, model: str, kind: Kind, *, tells: bool = True
    ) -> Iterator[Checkpoint]:
        with os.scandir(shelf) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_symlink():
                if tells:
                    self._left(f"models/{model}/{kind}/{entry.name}", _LINK)
            elif entry.name.endswith(".npz") and entry.is_file(follow_symlinks=False):
                yield from listed(model, kind, entry)

    def _take(
        self, shelf: int, model: str, kind: Kind, refs: Collection[Ref]
    ) -> Iterator[Checkpoint]:
        for item in self._on(shelf, model, kind, tells=False):
            if item.ref in refs:
                file = file_of(item.ref)
                try:
                    os.unlink(file, dir_fd=shelf)
                except FileNotFoundError:
                    continue  # somebody else was quicker
                except OSError as error:
                    why = f"cannot be removed ({_text(error)})"
                    self._left(f"models/{model}/{kind}/{file}", why)
                    continue
                yield item


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _sweep(folder: int, before: float) -> None:
    """Remove what was half written before then: its writer is gone."""
    for name in filter(_TORN.fullmatch, _names(folder)):
        with contextlib.suppress(OSError):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and facts.st_mtime < before:
                os.unlink(name, dir_fd=folder)


def _forget(models: int, folder: int, model: str, before: float) -> None:
    """Remove a model made before then that holds nothing; one that gets a checkpoint stays."""
    with contextlib.suppress(OSError):
        if os.stat("model.json", dir_fd=folder, follow_symlinks=False).st_mtime < before:
            for kind in KINDS:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(kind, dir_fd=folder)
            if _names(folder) == ["model.json"]:
                os.unlink("model.json", dir_fd=folder)
                os.rmdir(model, dir_fd=models)


def _why(at: int, name: str, error: OSError) -> str:
    with contextlib.suppress(OSError):
        mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return _LINK
        if not stat.S_ISDIR(mode):
            return "is not a folder"
    return f"cannot be read ({_text(error)})"


def _text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
