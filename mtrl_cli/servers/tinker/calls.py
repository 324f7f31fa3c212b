"""Training calls of the Tinker API as plain values: built here, sent by `training`.

Sequence ids count per model, from 1, and come from the caller.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mtrl_cli.servers.interface import (
    AdamSpec,
    Call,
    Datum,
    ForwardBackwardResult,
    LossSpec,
    ModelSpec,
)
from mtrl_cli.servers.tinker import codec, formats
from mtrl_cli.servers.tinker.formats import CONTENT_TYPES, Format, Formats

T = TypeVar("T")

_PATHS = frozenset({
    "create_model", "forward", "forward_backward", "optim_step", "save_weights_for_sampler",
    "save_weights", "load_weights", "unload_model", "sample",
})  # fmt: skip
"""What results name as their ``type``, where they name one."""
_ARRAYS = frozenset({"sequences", "loss_fn_outputs"})
"""What only results of passes and of samples hold."""

Names = Callable[[str], str]


def flat(name: str) -> str:
    """A checkpoint's name without slashes, which most servers refuse in one."""
    return name.replace("/", "-")


class Calls:
    """Builds the calls of one session.

    Args:
        formats: of the session.
        names: what a checkpoint of a given name is called on this server.
    """

    def __init__(self, formats: Formats, names: Names) -> None:
        self._formats = formats
        self._names = names

    def create_model(self, spec: ModelSpec, session: str, number: int) -> Call[str]:
        body = codec.body_of(codec.model_fields(spec, session, number))
        return _call("create_model", "create_model", body, lambda r: codec.name_in(r, "model_id"))

    def forward_backward(
        self, model: str, seq: int, data: Sequence[Datum], loss: LossSpec
    ) -> Call[ForwardBackwardResult]:
        digest = _digest(model, seq, data, loss)

        def written(form: Format, rewritten: Callable[[], Call[Any]] | None) -> Call[Any]:
            body = formats.forward_backward_body(form, model, seq, data, loss)
            return Call(
                kind="forward_backward",
                path="forward_backward",
                body=body,
                digest=digest,
                model=model,
                seq=seq,
                decode=formats.forward_backward_of,
                content_type=CONTENT_TYPES[form],
                rewritten=rewritten,
            )

        chosen, other = self._formats.chosen, self._formats.other
        return written(chosen, None if self._formats.known else lambda: written(other, None))

    def optim_step(self, model: str, seq: int, adam: AdamSpec) -> Call[Mapping[str, float]]:
        fields = {"adam_params": codec.adam_fields(adam), "model_id": model, "seq_id": seq}
        body = codec.body_of(fields)
        return _call("optim_step", "optim_step", body, codec.metrics_of, model, seq)

    def publish(self, model: str, seq: int, name: str) -> Call[str]:
        path = "save_weights_for_sampler"
        return _call("publish", path, self._save(model, seq, name), _path, model, seq)

    def save_state(self, model: str, seq: int, name: str) -> Call[str]:
        body = self._save(model, seq, name)
        return _call("save_state", "save_weights", body, _path, model, seq)

    def _save(self, model: str, seq: int, name: str) -> bytes:
        return codec.body_of({"model_id": model, "path": self._names(name), "seq_id": seq})

    def load_state(self, model: str, seq: int, uri: str) -> Call[None]:
        fields = {"model_id": model, "path": uri, "optimizer": True, "seq_id": seq}
        body = codec.body_of(fields)
        return _call("load_state", "load_weights", body, lambda r: None, model, seq)

    def unload_model(self, model: str) -> Call[None]:
        body = codec.body_of({"model_id": model})
        return _call("unload_model", "unload_model", body, lambda r: None, model)


def _path(reply: Mapping[str, Any]) -> str:
    return codec.name_in(reply, "path")


def _call(
    kind: str,
    path: str,
    body: bytes,
    decode: Callable[[Mapping[str, Any]], T],
    model: str | None = None,
    seq: int | None = None,
) -> Call[T]:
    def decoded(result: formats.Result) -> T:
        return decode(_own(formats.unpacked(result), path))

    return Call(kind, path, body, hashlib.sha256(body).hexdigest(), model, seq, decoded)


def _own(reply: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """``reply``, unless it shows that it answers another call than that of ``path``.

    Raises:
        MalformedReply: it does. Some calls need nothing from their result, and would take any.
    """
    said = reply.get("type")
    if (isinstance(said, str) and said in _PATHS and said != path) or not _ARRAYS.isdisjoint(reply):
        raise codec.MalformedReply("the result that came is that of another call")
    return reply


def _digest(model: str, seq: int, data: Sequence[Datum], loss: LossSpec) -> str:
    """Of what a pass says, the same in every format."""
    digest = hashlib.sha256(json.dumps([model, seq, loss.name, dict(loss.config)]).encode())
    for datum in data:
        for array in (datum.tokens, datum.targets, datum.logprobs, datum.advantages):
            digest.update(len(array).to_bytes(8))
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
