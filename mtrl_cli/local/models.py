"""Models under training: calls in order, each executed once, on the training thread.

A training call carries the model's next `seq_id`. The same number with the same body is the same
call and gets the same request id; with another body, or below the last number seen, it is 409.
A gap is allowed: calls run in the order they arrive. A forward_backward or optim_step that fails
while running leaves gradients nobody can vouch for, so the model refuses to train on.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from mtrl_cli.local import calls
from mtrl_cli.local.engine import AdamParams, Datum, Lora, Shape, TrainableModel, Weights
from mtrl_cli.local.errors import RefusedError, WorkError
from mtrl_cli.local.store import ExistsError, Kind, LinkError, MissingError, Ref, Store, parse_uri
from mtrl_cli.local.validate import refuse

_T = TypeVar("_T")


@dataclass(eq=False)
class Model:
    id: str
    session_id: str
    base_model: str
    lora: calls.LoraCall | None
    trainable: TrainableModel | None = None
    gone: str | None = None
    broken: str | None = None
    seen: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    last_seq: int = 0
    started: bool = False
    saving: set[Ref] = field(default_factory=set)
    applied: Counter[str] = field(default_factory=Counter)
    last_request: float = field(default_factory=time.time)

    def replay(self, seq_id: int | None, digest: bytes) -> str | None:
        """The request id this very call was given before, or None for a new call."""
        if seq_id is None:
            return None
        known = self.seen.get(seq_id)
        if known is not None:
            if known[0] == digest:
                return known[1]
            raise RefusedError(
                409,
                f"seq_id: {seq_id} was used by another request on {self.id}; "
                f"the next is {self.last_seq + 1}",
            )
        if seq_id <= self.last_seq:
            raise RefusedError(
                409,
                f"seq_id: {seq_id} is not above {self.last_seq}, the last one seen on "
                f"{self.id}; the next is {self.last_seq + 1}",
            )
        return None

    def accept(self, seq_id: int | None, digest: bytes, request_id: str) -> None:
        self.started = True
        self.last_request = time.time()
        if seq_id is not None:
            self.seen[seq_id] = (digest, request_id)
            self.last_seq = seq_id

    def describe(self) -> dict[str, Any]:
        return {"base_model": self.base_model, "lora": lora_record(self.lora)}


def lora_record(lora: calls.LoraCall | None) -> dict[str, Any] | None:
    """What decides whether a training state fits a model; the seed does not."""
    if lora is None:
        return None
    record = asdict(lora)
    del record["seed"]
    return record


def _alive(model: Model) -> TrainableModel:
    if model.gone is not None:
        raise WorkError(f"{model.id}: {model.gone}; this call was not executed", "user")
    if model.trainable is None:
        raise WorkError(f"{model.id}: it could not be created; see its create_model", "server")
    return model.trainable


def _whole(model: Model) -> TrainableModel:
    trainable = _alive(model)
    if model.broken is not None:
        raise WorkError(
            f"{model.id}: not executed, because {model.broken}; load a saved state into a new "
            "model",
            "server",
        )
    return trainable


# --- the jobs; each runs on the training thread and returns the promise's result


def create(
    model: Model, shape: Shape, base: Weights, store: Store, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    if model.gone is not None:
        raise WorkError(f"{model.id}: {model.gone}; it was not created", "user")
    lora = None
    if model.lora is not None:
        seed = secrets.randbits(31) if model.lora.seed is None else model.lora.seed
        lora = Lora(**{**asdict(model.lora), "seed": seed})
    model.trainable = TrainableModel(shape, base, lora)
    store.new_model(
        model.id,
        {
            **model.describe(),
            "created": time.time(),
            "user_metadata": None if metadata is None else dict(metadata),
        },
    )
    return {
        "model_id": model.id,
        "base_model": model.base_model,
        "lora_config": None if model.lora is None else asdict(model.lora),
        "type": "create_model",
    }


def train(model: Model, call: calls.TrainCall) -> calls.TrainResult:
    data = [Datum(datum.tokens, datum.inputs) for datum in call.data]
    if call.backward:
        return _guarded(model, "forward_backward", lambda t: _forward_backward(t, data, call))
    trainable = _alive(model)
    logprobs = trainable.forward(data)
    model.applied["forward"] += 1
    metrics: dict[str, float] = {}
    if call.loss == "cross_entropy" and all("weights" in d.inputs for d in call.data):
        metrics["loss:sum"] = -sum(
            float(np.dot(lp, d.inputs["weights"]))
            for lp, d in zip(logprobs, call.data, strict=True)
        )
    return _checked(logprobs, metrics)


def _forward_backward(
    trainable: TrainableModel, data: list[Datum], call: calls.TrainCall
) -> calls.TrainResult:
    output = trainable.forward_backward(data, call.loss, call.config)  # type: ignore[arg-type]
    return _checked(output.logprobs, {"loss:sum": output.loss, **output.metrics})


def _checked(logprobs: list[Any], metrics: dict[str, float]) -> calls.TrainResult:
    if not all(np.isfinite(array).all() for array in logprobs):
        raise WorkError("a logprob is not finite; the weights are broken", "server")
    if not all(np.isfinite(value) for value in metrics.values()):
        raise WorkError("the loss is not finite; check logprobs and advantages", "user")
    return calls.TrainResult(logprobs, metrics)


def optim_step(model: Model, call: calls.OptimCall) -> dict[str, Any]:
    metrics = _guarded(model, "optim_step", lambda t: _step(t, AdamParams(**call.adam)))
    return {"metrics": metrics, "type": "optim_step"}


def _step(trainable: TrainableModel, adam: AdamParams) -> dict[str, float]:
    metrics = trainable.optim_step(adam)
    if not all(np.isfinite(value) for value in metrics.values()):
        raise WorkError(f"the gradient is not finite ({metrics}); the weights are broken", "user")
    return metrics


def _guarded(model: Model, name: str, work: Callable[[TrainableModel], _T]) -> _T:
    trainable = _whole(model)
    try:
        result = work(trainable)
    except Exception as error:
        model.broken = f"an earlier {name} failed ({error})"
        raise
    model.applied[name] += 1
    return result


def save_state(model: Model, ref: Ref, store: Store, overwrite: bool) -> dict[str, Any]:
    trainable = _alive(model)
    meta = {**_meta(model, "weights"), "optimizer": True}
    _put(store, ref, trainable.state(optimizer=True), meta, overwrite)
    model.applied["save_weights"] += 1
    return {"path": ref.uri, "type": "save_weights"}


def save_snapshot(model: Model, ref: Ref, store: Store) -> tuple[dict[str, Any], Weights, str]:
    """A named sampler snapshot: the promise's result, the weights, their content id."""
    trainable = _alive(model)
    weights = trainable.snapshot()
    meta = _meta(model, "sampler_weights")
    adapters = {} if model.lora is None else trainable.state(optimizer=False)
    _put(store, ref, {**weights, **adapters}, meta, False)
    model.applied["save_weights_for_sampler"] += 1
    result = {"path": ref.uri, "sampling_session_id": None, "type": "save_weights_for_sampler"}
    return result, weights, meta["id"]


def save_ephemeral(model: Model, store: Store) -> tuple[str, Weights, str]:
    """An unnamed sampler snapshot: its file, the weights, their content id."""
    weights = _alive(model).snapshot()
    _check_finite(weights)
    meta = _meta(model, "sampler_weights")
    name = store.save_ephemeral(weights, meta)
    model.applied["save_weights_for_sampler"] += 1
    return name, weights, meta["id"]


def _meta(model: Model, kind: Kind) -> dict[str, Any]:
    return {
        "id": secrets.token_hex(8),
        "kind": kind,
        "model_id": model.id,
        "time": time.time(),
        **model.describe(),
    }


def _put(store: Store, ref: Ref, arrays: Weights, meta: dict[str, Any], overwrite: bool) -> None:
    _check_finite(arrays)
    try:
        store.save(ref, arrays, meta, overwrite)
    except ExistsError:
        raise WorkError(f"path: {ref.uri} exists already", "user") from None
    except LinkError as error:
        raise WorkError(f"path: {ref.uri} was not saved: {error}", "server") from None


def _check_finite(arrays: Weights) -> None:
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise WorkError("the weights are not finite any more; nothing was saved", "server")


def load(model: Model, ref: Ref, store: Store, optimizer: bool) -> dict[str, Any]:
    trainable = _alive(model)
    try:
        arrays, _ = store.load(ref)
    except MissingError as error:
        raise WorkError(f"path: {error} is not in the store", "user") from None
    _guarded(model, "load_weights", lambda t: t.load_state(arrays, optimizer))
    assert trainable is model.trainable
    return {"path": ref.uri, "type": "load_weights"}


def state_ref(path: str) -> Ref:
    """The training state that a path names; what may be loaded is nothing else."""
    ref = parse_uri(path)
    if ref.kind != "weights":
        refuse("path", f"{ref.uri} is a sampler snapshot; load what save_weights returned")
    return ref


def check_fits(model: Model, meta: Mapping[str, Any], optimizer: bool) -> None:
    """Refuse a training state of another base model or another LoRA shape."""
    if meta.get("base_model") != model.base_model:
        made = f"{meta.get('base_model')!r:.60}"
        raise RefusedError(400, f"path: a state of {made}; {model.id} is a {model.base_model}")
    if meta.get("lora") != lora_record(model.lora):
        raise RefusedError(
            400,
            f"path: a state with lora {meta.get('lora')}, and {model.id} has "
            f"{lora_record(model.lora)}; create the model as weights_info says",
        )
    if optimizer and not meta.get("optimizer"):
        raise RefusedError(400, "optimizer: this state was saved without it; send false")
