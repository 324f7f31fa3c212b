"""Sampler snapshots in memory: which weights a sampling session means, loaded once and shared.

A snapshot is known by its content id, made when it was saved and written inside the file. Two
sessions on one URI share one set of weights and so one batch. Weights are read from the store on
first use and dropped, least recently used first, when all of them together grow too large; the
store has them. A URI whose file has changed or gone since the session began is an error, never
other weights.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.local.engine import Weights
from mtrl_cli.local.errors import WorkError
from mtrl_cli.local.store import MissingError, Ref, Store, matrices

BASE_ID = "base"


@dataclass(frozen=True)
class Snapshot:
    """Which weights: `weights_id` names the content, `uri` is what clients call it."""

    weights_id: str
    uri: str
    base_model: str
    ref: Ref | None = None  # in the store under a name
    ephemeral: str | None = None  # in the store, unnamed; both None: the base weights

    @property
    def model_id(self) -> str:
        """The model that made it, for the counters."""
        return self.uri.partition("://")[2].partition("/")[0] or BASE_ID


class Snapshots:
    def __init__(
        self,
        store: Store,
        base: Weights,
        forget: Callable[[str], None],
        max_bytes: int = 256 * 2**20,
    ) -> None:
        self._store = store
        self._base = base
        self._forget = forget
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Weights] = OrderedDict()
        self._bytes = 0

    def get(self, snapshot: Snapshot) -> Weights:
        """The weights, from memory or disk. Called from worker threads."""
        if snapshot.weights_id == BASE_ID:
            return self._base
        with self._lock:
            held = self._held.get(snapshot.weights_id)
            if held is not None:
                self._held.move_to_end(snapshot.weights_id)
                return held
        weights = self._load(snapshot)
        self.put(snapshot.weights_id, weights)
        return weights

    def _load(self, snapshot: Snapshot) -> Weights:
        try:
            if snapshot.ref is not None:
                arrays, meta = self._store.load(snapshot.ref)
            else:
                arrays, meta = self._store.load_ephemeral(snapshot.ephemeral or "")
        except MissingError as error:
            raise WorkError(f"weights: {error} is not in the store any more", "user") from None
        if meta.get("id") != snapshot.weights_id:
            raise WorkError(
                f"weights: {snapshot.uri} is not what it was; make a new sampling session", "user"
            )
        return _read_only(matrices(arrays))

    def put(self, weights_id: str, weights: Weights) -> None:
        dropped: list[str] = []
        with self._lock:
            if weights_id in self._held:
                return
            self._held[weights_id] = weights
            self._bytes += _size(weights)
            while self._bytes > self._max_bytes and len(self._held) > 1:
                name, old = self._held.popitem(last=False)
                self._bytes -= _size(old)
                dropped.append(name)
        for name in dropped:
            self._forget(name)

    def drop(self, weights_id: str) -> None:
        with self._lock:
            old = self._held.pop(weights_id, None)
            if old is None:
                return
            self._bytes -= _size(old)
        self._forget(weights_id)

    def counters(self) -> dict[str, int]:
        with self._lock:
            return {"held": len(self._held), "bytes": self._bytes}


def _size(weights: Weights) -> int:
    return sum(int(array.nbytes) for array in weights.values())


def _read_only(arrays: dict[str, NDArray[Any]]) -> Weights:
    for array in arrays.values():
        if array.dtype != np.float32:
            raise WorkError("weights: the snapshot is not float32", "server")
        array.flags.writeable = False
    return arrays
