"""A checkpoint as a download: safetensors with what is needed to load them, in one tar file.

============================  =================================================================
``model.safetensors``         all matrices, named and laid out as the store has them (y = x @ W)
``config.json``               the architecture's numbers
``adapter_model.safetensors`` of a LoRA model instead: PEFT's names and layout, where a linear
                              layer has ``lora_A`` [rank, in] and ``lora_B`` [out, rank]
``adapter_config.json``       rank, alpha, the adapted modules, the base model's name
============================  =================================================================

A download needs no key, so that any HTTP client can make it: the link itself is signed, and
expires (`Links`).
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import secrets
import tarfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtrl_cli.local.engine import Shape
from mtrl_cli.local.errors import RefusedError
from mtrl_cli.local.store import Arrays, Ref, Store, matrices

_PARAMETER = "parameter/"
"""Prefix of what is trained: all of a training state, and the adapters in a LoRA snapshot."""
_MINUTES = 15
_TOKEN_MATRIX = "embed"


class Links:
    """Signs the paths of downloads; the secret is this process's own."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def sign(self, path: str) -> tuple[str, float]:
        """The path with its signature, and when it expires (Unix seconds)."""
        expires = int(time.time()) + 60 * _MINUTES
        return f"{path}?expires={expires}&signature={self._mark(path, str(expires))}", expires

    def check(self, path: str, query: Mapping[str, str]) -> None:
        """Refuse a link that was not signed here, or has expired."""
        expires, mark = query.get("expires", ""), query.get("signature", "")
        if not hmac.compare_digest(mark.encode(), self._mark(path, expires).encode()):
            raise RefusedError(403, "download: the link is not signed by this server; ask again")
        if int(expires) < time.time():
            raise RefusedError(403, "download: the link has expired; ask for a new one")

    def _mark(self, path: str, expires: str) -> str:
        return hmac.new(self._secret, f"{path}?{expires}".encode(), hashlib.sha256).hexdigest()


def pack(store: Store, ref: Ref, shape: Shape) -> bytes:
    """The tar file of a checkpoint.

    Raises:
        MissingError: it is not in the store, or cannot be read.
    """
    arrays, meta = store.load(ref)
    lora = meta.get("lora")
    parameters = {
        name.removeprefix(_PARAMETER): value
        for name, value in arrays.items()
        if name.startswith(_PARAMETER)
    }
    if lora is not None and parameters:
        weights, config = _peft(parameters, lora, meta)
        names = ("adapter_model.safetensors", "adapter_config.json")
    else:
        weights, config = parameters or matrices(arrays), _config(shape, meta)
        names = ("model.safetensors", "config.json")
    return _tar({names[0]: _safetensors(weights), names[1]: _json(config)})


def _config(shape: Shape, meta: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "mtrl-tiny",
        "base_model": meta.get("base_model"),
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _peft(
    parameters: Arrays, lora: Mapping[str, Any], meta: Mapping[str, Any]
) -> tuple[Arrays, dict[str, Any]]:
    """The adapters under PEFT's names, and its configuration of them.

    The engine has W' = W + (alpha / rank) A B with y = x W'; PEFT has y = W x and adds
    (alpha / rank) B A, so each matrix is handed out transposed.
    """
    made: Arrays = {}
    for name, value in parameters.items():
        module, _, side = name.rpartition(".")
        middle = "lora_embedding" if module == _TOKEN_MATRIX else "lora"
        ending = "" if module == _TOKEN_MATRIX else ".weight"
        made[f"base_model.model.{module}.{middle}_{side}{ending}"] = np.ascontiguousarray(value.T)
    modules = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in parameters})
    return made, {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": meta.get("base_model"),
        "r": lora["rank"],
        "lora_alpha": lora["alpha"],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": modules,
        "inference_mode": True,
    }


def _safetensors(weights: Arrays) -> bytes:
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    # One entry, as their order is not fixed: a checkpoint is packed into the same bytes each time.
    return save(arrays, metadata={"format": "pt"})


def _json(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, indent=2) + "\n").encode()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
