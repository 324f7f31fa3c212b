"""The store on disk: immutable checkpoints in one folder, shared by any number of processes.

    STORE/                                       0700
      models/MODEL_ID/model.json                 what the model is; its folder's mkdir claims the id
      models/MODEL_ID/weights/NAME.npz           training state, optionally with the optimizer's
      models/MODEL_ID/sampler_weights/NAME.npz   sampler snapshot; of a LoRA also the adapters
      ephemeral/SERVER/NAME.npz                  unnamed snapshots of one server process
      ephemeral/SERVER.lock                      held by that process while it lives

A file is written beside its place, fsynced, and linked there; the link fails when the name exists,
so two processes cannot both win. `/` in a checkpoint's name becomes `+` in the file's. The
metadata, with a digest of the arrays, is an array inside the file, so that a checkpoint is whole
or absent. File names met in the folder are untrusted: only those this module could have written
are looked at. The store's own folder may be a symbolic link; below it nothing is written, removed
or swept behind one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.local.errors import RefusedError

Kind = Literal["weights", "sampler_weights"]
Arrays = dict[str, NDArray[Any]]
KINDS: tuple[Kind, ...] = ("weights", "sampler_weights")
META = "__meta__"

_MODEL_ID = re.compile(r"model_[0-9a-f]{12}|session_[0-9a-f]{12}:train:[0-9]{1,10}")
_SERVER = re.compile(r"[0-9a-f]{12}")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MAX_NAME = 200


def matrices(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """What of a sampler snapshot is run: adapters lie beside them, under a prefix."""
    return {name: value for name, value in arrays.items() if "/" not in name}


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over the arrays' names, types, shapes and bytes, in the order of the names."""
    made = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        made.update(f"{name}\0{value.dtype.str}\0{value.shape}\0".encode())
        made.update(value.data)
    return f"sha256:{made.hexdigest()}"


def new_model_id() -> str:
    return f"model_{secrets.token_hex(6)}"


def is_model_id(name: str) -> bool:
    """Whether a folder of this name can be a model's."""
    return _MODEL_ID.fullmatch(name) is not None


class MissingError(Exception):
    """A checkpoint or model that is not in the store."""


class ExistsError(Exception):
    """A checkpoint that is in the store already."""


class LinkError(Exception):
    """A folder of the store that is a symbolic link: what lies behind it is not the store's."""


@dataclass(frozen=True)
class Ref:
    """Where a checkpoint lives; its URI is `tinker://<model_id>/<kind>/<name>`."""

    model_id: str
    kind: Kind
    name: str

    @property
    def uri(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"

    @property
    def checkpoint_id(self) -> str:
        return f"{self.kind}/{self.name}"


def check_name(name: str, field: str = "path") -> str:
    if len(name) > _MAX_NAME:
        raise RefusedError(400, f"{field}: {len(name)} characters; at most {_MAX_NAME} are allowed")
    if not all(_SEGMENT.fullmatch(part) for part in name.split("/")):
        raise RefusedError(
            400,
            f"{field}: {name!r:.80} is not a checkpoint name; write letters, digits, . _ - in "
            "parts joined by /, no part beginning with a dot or a dash",
        )
    return name


def parse_uri(uri: str, field: str = "path") -> Ref:
    head, _, rest = uri.partition("://")
    model_id, _, rest = rest.partition("/")
    kind, _, name = rest.partition("/")
    if head != "tinker" or kind not in KINDS or not name:
        raise RefusedError(
            400,
            f"{field}: {uri!r:.120} is not a checkpoint's URI; write "
            "tinker://MODEL_ID/weights/NAME or tinker://MODEL_ID/sampler_weights/NAME",
        )
    if not _MODEL_ID.fullmatch(model_id):
        raise RefusedError(404, f"{field}: {uri!r:.120} names a model that is not in this store")
    return Ref(
        model_id, "weights" if kind == "weights" else "sampler_weights", check_name(name, field)
    )


@dataclass(frozen=True)
class Checkpoint:
    ref: Ref
    size: int
    time: float


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (root, root / "models", root / "ephemeral"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder != root and folder.is_symlink():
                raise OSError(
                    errno.ELOOP,
                    f"{folder.name} in it is a symbolic link, and none is followed in a store "
                    "(the store itself may be one)",
                )
        sweep_dead(root)
        server = secrets.token_hex(6)
        self._lock_path = root / "ephemeral" / f"{server}.lock"
        self._lock = os.open(self._lock_path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # waits for a sweeper that met the empty file
        self._ephemeral = root / "ephemeral" / server
        self._ephemeral.mkdir(mode=0o700)

    def close(self) -> None:
        shutil.rmtree(self._ephemeral, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    # --- models

    def new_model(self, model_id: str, record: Mapping[str, Any]) -> None:
        """Claim a model id on disk (its folder must be new) and write what the model is."""
        folder = self.root / "models" / model_id
        folder.mkdir(mode=0o700)
        data = json.dumps(record, default=str).encode()
        _write(folder / "model.json", lambda handle: handle.write(data), durable=True)

    def model(self, model_id: str) -> dict[str, Any]:
        if not _MODEL_ID.fullmatch(model_id):
            raise MissingError(model_id)
        try:
            record = json.loads((self.root / "models" / model_id / "model.json").read_bytes())
        except (OSError, ValueError):
            raise MissingError(model_id) from None
        if not isinstance(record, dict):
            raise MissingError(model_id)
        return record

    def models(self) -> list[str]:
        """Every model id, the newest first."""
        found: list[tuple[float, str]] = []
        with os.scandir(self.root / "models") as entries:
            for entry in entries:
                if _MODEL_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        created = (Path(entry.path) / "model.json").stat().st_mtime
                        found.append((created, entry.name))
        return [name for _, name in sorted(found, reverse=True)]

    # --- checkpoints

    def _path(self, ref: Ref) -> Path:
        return self.root / "models" / ref.model_id / ref.kind / file_of(ref)

    def _own(self, ref: Ref) -> Path:
        """The path of what is written or deleted.

        Raises:
            LinkError: it lies behind a symbolic link.
        """
        path = self._path(ref)
        for folder in (path.parent.parent, path.parent):
            if folder.is_symlink():
                place = folder.relative_to(self.root)
                raise LinkError(f"{place} is a symbolic link, and none is followed in a store")
        return path

    def exists(self, ref: Ref) -> bool:
        return self._path(ref).is_file()

    def save(
        self,
        ref: Ref,
        arrays: Mapping[str, NDArray[Any]],
        meta: Mapping[str, Any],
        overwrite: bool = False,
    ) -> None:
        path = self._own(ref)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _save_arrays(path, arrays, meta, overwrite)

    def load(self, ref: Ref) -> tuple[Arrays, dict[str, Any]]:
        return _load_arrays(self._path(ref), ref.uri)

    def meta(self, ref: Ref) -> dict[str, Any]:
        return _load_meta(self._path(ref), ref.uri)

    def delete(self, ref: Ref) -> None:
        try:
            self._own(ref).unlink()
        except FileNotFoundError:
            raise MissingError(ref.uri) from None

    def checkpoints(self, model_id: str) -> list[Checkpoint]:
        """The checkpoints of one model, oldest first, as the folder lists them.

        No file is opened: one that cannot be read is listed like any other, and refused when it
        is asked for.
        """
        found: list[Checkpoint] = []
        for kind in KINDS if _MODEL_ID.fullmatch(model_id) else ():
            with contextlib.suppress(FileNotFoundError), self._listing(model_id, kind) as entries:
                for entry in entries:
                    if entry.name.endswith(".npz") and entry.is_file(follow_symlinks=False):
                        found.extend(listed(model_id, kind, entry))
        return sorted(found, key=lambda c: (c.time, c.ref.name))

    def _listing(self, model_id: str, kind: Kind) -> Any:
        return os.scandir(self.root / "models" / model_id / kind)

    # --- unnamed snapshots of this process

    def save_ephemeral(self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> str:
        name = secrets.token_hex(8)
        _save_arrays(self._ephemeral / f"{name}.npz", arrays, meta, False, durable=False)
        return name

    def load_ephemeral(self, name: str) -> tuple[Arrays, dict[str, Any]]:
        return _load_arrays(self._ephemeral / f"{name}.npz", "the unnamed snapshot")

    def delete_ephemeral(self, name: str) -> None:
        (self._ephemeral / f"{name}.npz").unlink(missing_ok=True)


def file_of(ref: Ref) -> str:
    """The name of a checkpoint's file."""
    return check_name(ref.name).replace("/", "+") + ".npz"


def listed(model_id: str, kind: Kind, entry: os.DirEntry[str]) -> Iterator[Checkpoint]:
    """The checkpoint of a file whose name this module could have written."""
    name = entry.name.removesuffix(".npz").replace("+", "/")
    with contextlib.suppress(RefusedError, OSError):
        ref, facts = Ref(model_id, kind, check_name(name)), entry.stat(follow_symlinks=False)
        yield Checkpoint(ref, facts.st_size, facts.st_mtime)


def sweep_dead(root: Path) -> None:
    """Remove the unnamed snapshots of processes that are gone: their lock can be had."""
    if (root / "ephemeral").is_symlink():
        return
    for path in (root / "ephemeral").glob("*.lock"):
        if _SERVER.fullmatch(path.stem):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink()
                finally:
                    os.close(handle)


def _save_arrays(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    meta: Mapping[str, Any],
    overwrite: bool,
    durable: bool = True,
) -> None:
    told = {**meta, "digest": digest(arrays)}
    record = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
    content: dict[str, Any] = {**arrays, META: record}
    _write(path, lambda handle: np.savez(handle, **content), durable, overwrite)


def _write(path: Path, fill: Any, durable: bool, overwrite: bool = False) -> None:
    """Write beside, fsync, then link (fails when the name exists) or replace."""
    beside = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        with beside.open("xb") as handle:
            fill(handle)
            handle.flush()
            if durable:
                os.fsync(handle.fileno())
        if overwrite:
            beside.replace(path)
        else:
            try:
                path.hardlink_to(beside)
            except FileExistsError:
                raise ExistsError(str(path)) from None
    finally:
        beside.unlink(missing_ok=True)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[Any]:
    """An open archive; whatever is wrong with the file is `MissingError`."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            yield archive
    except FileNotFoundError:
        raise MissingError(what) from None
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, EOFError) as error:
        raise MissingError(f"{what} (unreadable: {error})") from None


def _load_arrays(path: Path, what: str) -> tuple[Arrays, dict[str, Any]]:
    with _reading(path, what) as archive:
        arrays = {name: archive[name] for name in archive.files if name != META}
        return arrays, _meta_of(archive, what)


def _load_meta(path: Path, what: str) -> dict[str, Any]:
    with _reading(path, what) as archive:
        return _meta_of(archive, what)


def _meta_of(archive: Any, what: str) -> dict[str, Any]:
    meta = json.loads(bytes(archive[META]))
    if not isinstance(meta, dict):
        raise MissingError(f"{what} (unreadable metadata)")
    return meta
