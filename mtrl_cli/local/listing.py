"""What the store holds, in the API's words: training runs, checkpoints, weights_info."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mtrl_cli.local.store import Checkpoint, MissingError, Store


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def checkpoint(item: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": item.ref.checkpoint_id,
        "checkpoint_type": "training" if item.ref.kind == "weights" else "sampler",
        "time": _time(item.time),
        "tinker_path": item.ref.uri,
        "size_bytes": item.size,
        "public": False,
        "expires_at": None,
    }


def checkpoints(store: Store, model_id: str) -> dict[str, Any]:
    store.model(model_id)
    return {"checkpoints": [checkpoint(item) for item in store.checkpoints(model_id)]}


def training_run(store: Store, model_id: str, last_request: float | None) -> dict[str, Any]:
    record = store.model(model_id)
    lora = record.get("lora")
    made = [checkpoint(item) for item in store.checkpoints(model_id)]
    newest = {item["checkpoint_type"]: item for item in made}
    metadata = record.get("user_metadata")
    return {
        "training_run_id": model_id,
        "base_model": record.get("base_model"),
        "model_owner": "local",
        "is_lora": lora is not None,
        "lora_rank": None if lora is None else lora.get("rank"),
        "corrupted": False,
        "last_request_time": _time(last_request or float(record.get("created", 0.0))),
        "last_checkpoint": newest.get("training"),
        "last_sampler_checkpoint": newest.get("sampler"),
        "user_metadata": None if metadata is None else {k: str(v) for k, v in metadata.items()},
    }


def training_runs(
    store: Store, limit: int, offset: int, last_requests: Mapping[str, float]
) -> dict[str, Any]:
    """One page of the runs in the store, the newest first."""
    names = store.models()
    page: list[dict[str, Any]] = []
    for name in names[offset : offset + limit]:
        with contextlib.suppress(MissingError, OSError):
            page.append(training_run(store, name, last_requests.get(name)))
    cursor = {"offset": offset, "limit": limit, "total_count": len(names)}
    return {"training_runs": page, "cursor": cursor}


def weights_info(meta: Mapping[str, Any]) -> dict[str, Any]:
    lora = meta.get("lora")
    info: dict[str, Any] = {
        "base_model": meta.get("base_model"),
        "is_lora": lora is not None,
        "lora_rank": None,
    }
    if isinstance(meta.get("digest"), str):
        info["digest"] = meta["digest"]
    if lora is not None:
        info["lora_rank"] = lora.get("rank")
        info |= {key: lora.get(key) for key in ("train_unembed", "train_mlp", "train_attn")}
    return info
