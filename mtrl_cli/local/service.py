"""The service: one base model, its sessions, models, samplers and promises, free of HTTP.

Everything here runs on the event loop and returns at once, except where it asks the store, which
it does in a thread. Work goes to the two worker threads and comes back to a promise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.local import calls, models, validate
from mtrl_cli.local.answers import Answer
from mtrl_cli.local.engine import Shape, Weights
from mtrl_cli.local.errors import Failure, RefusedError
from mtrl_cli.local.models import Model
from mtrl_cli.local.promises import Promise, Promises
from mtrl_cli.local.sampling import Sampling
from mtrl_cli.local.scheduler import SamplingThread, TrainingThread
from mtrl_cli.local.sessions import Graveyard, Session, Sessions
from mtrl_cli.local.snapshots import Snapshot, Snapshots
from mtrl_cli.local.store import MissingError, Ref, Store, check_name, new_model_id
from mtrl_cli.local.validate import refuse

MAX_SEEN = 20_000


@dataclass(frozen=True)
class Settings:
    store: Path
    base_model: str = "mtrl-tiny"
    session_ttl: float = 120.0
    patience: float = 30.0
    max_rows: int = 64
    keep_answers: float = 3600.0


class Service:
    """Create it on the running event loop; `close` ends its threads."""

    def __init__(self, settings: Settings, shape: Shape, base: Weights) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.shape = shape
        self.base = base
        self.store = Store(settings.store)
        self.sessions = Sessions(settings.session_ttl)
        self.promises = Promises(max_age=settings.keep_answers)
        self._training = TrainingThread(loop)
        self._sampling = SamplingThread(loop, shape, settings.max_rows)
        self._snapshots = Snapshots(self.store, base, self._sampling.forget)
        self._sampling.start(self._snapshots)
        self.sampling = Sampling(
            settings.base_model,
            shape,
            self.store,
            self.sessions,
            self.promises,
            self._sampling,
            self._snapshots,
        )
        self._models: dict[str, Model] = {}
        self._gone = Graveyard()
        self._unloads: dict[str, str] = {}
        self._applied: dict[str, dict[str, int]] = {}
        self._sweeper = asyncio.create_task(self._sweep())

    # --- sessions

    def create_session(self) -> Session:
        return self.sessions.create()

    def end_session(self, session_id: str, reason: str) -> None:
        """Free everything the session holds.

        What it has sampled without an answer ends with the reason. Training calls end by
        themselves: the one at work with its result, those queued behind it by finding their model
        gone. So an answer of "not executed" is true.
        """
        session = self.sessions.remove(session_id, reason)
        if session is None:
            return
        self.sampling.release(session, reason)
        for model_id in list(session.models):
            self._remove_model(model_id, reason)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self.settings.session_ttl / 4))
            for session_id in self.sessions.silent():
                self.end_session(
                    session_id, f"no heartbeat for {self.settings.session_ttl:g} seconds"
                )
            self.promises.sweep()

    # --- models

    def create_model(self, call: calls.CreateModelCall, digest: bytes) -> dict[str, Any]:
        session = self.sessions.touch(call.session_id)
        replay = session.replay("model_seq_id", call.model_seq_id, digest)
        if replay is not None:
            return replay
        self.sampling.check_base(call.base_model)
        model = self._add_model(
            session, Model(new_model_id(), session.id, call.base_model, call.lora)
        )
        promise = self._train(
            session.id,
            lambda: models.create(model, self.shape, self.base, self.store, call.user_metadata),
        )
        reply = {
            "request_id": promise.request_id,
            "model_id": model.id,
            "status": "created",
            "base_model": call.base_model,
            "lora_config": models.lora_record(call.lora),
        }
        return session.remember("model_seq_id", call.model_seq_id, digest, reply)

    def _add_model(self, session: Session, model: Model) -> Model:
        self._models[model.id] = model
        session.models.add(model.id)
        return model

    async def create_by_load(self, call: calls.CreateByLoadCall, digest: bytes) -> dict[str, Any]:
        """Create the model that a training state fits, with the state in it, in one call.

        Its id is the one that such a client works out by itself.
        """
        ref = models.state_ref(call.path)
        self.sessions.touch(call.session_id)
        meta = await self.checkpoint_meta(ref)
        session = self.sessions.touch(call.session_id)
        replay = session.replay("model_seq_id", call.model_seq_id, digest)
        if replay is not None:
            return replay
        base_model = str(meta.get("base_model"))
        self.sampling.check_base(base_model, "path")
        lora = meta.get("lora")
        model = Model(
            f"{session.id}:train:{call.model_seq_id}",
            session.id,
            base_model,
            None if lora is None else calls.LoraCall(seed=None, **lora),
        )
        models.check_fits(model, meta, call.optimizer)
        self._add_model(session, model)

        def work() -> dict[str, Any]:
            models.create(model, self.shape, self.base, self.store, call.user_metadata)
            loaded = models.load(model, ref, self.store, call.optimizer)
            return {**loaded, "model_id": model.id}

        reply = {"request_id": self._train(session.id, work).request_id, "model_id": model.id}
        return session.remember("model_seq_id", call.model_seq_id, digest, reply)

    def model(self, model_id: str) -> Model:
        """A live model, with a beat for its session."""
        model = self._models.get(model_id)
        if model is None:
            raise self._gone.refuse("model_id", model_id)
        self.sessions.touch(model.session_id)
        return model

    def unload_model(self, model_id: str) -> str:
        """Free a model after the calls before it; asking again gets the same promise."""
        if model_id in self._unloads:
            return self._unloads[model_id]
        model = self.model(model_id)
        result = {"model_id": model_id, "status": "unloaded", "type": "unload_model"}

        def free() -> dict[str, Any]:
            model.gone = "it was unloaded"
            model.trainable = None
            return result

        promise = self._train(model.session_id, free)
        self._forget_model(model, "it was unloaded")
        self._unloads[model_id] = promise.request_id
        if len(self._unloads) > MAX_SEEN:
            del self._unloads[next(iter(self._unloads))]
        return promise.request_id

    def _remove_model(self, model_id: str, reason: str) -> None:
        """Free a model now; its queued calls find it gone and are not executed."""
        model = self._models[model_id]
        model.gone = reason
        model.trainable = None
        self._forget_model(model, reason)

    def _forget_model(self, model: Model, reason: str) -> None:
        del self._models[model.id]
        session = self.sessions.find(model.session_id)
        if session is not None:
            session.models.discard(model.id)
        self._gone.bury(model.id, reason)
        self._applied[model.id] = model.applied
        if len(self._applied) > MAX_SEEN:
            del self._applied[next(iter(self._applied))]

    # --- training calls

    def train(self, call: calls.TrainCall, digest: bytes) -> str:
        model = self.model(call.model_id)
        known = model.replay(call.seq_id, digest)
        if known is not None:
            return known
        self._check_data(call)
        return self._call(
            model, call.seq_id, digest, lambda: models.train(model, call), pack=call.packed
        )

    def _check_data(self, call: calls.TrainCall) -> None:
        name = "forward_backward_input" if call.backward else "forward_input"
        needed = validate.LOSS_INPUTS[call.loss] if call.backward else ("target_tokens",)
        for index, datum in enumerate(call.data):
            validate.check_datum(
                datum.tokens,
                datum.inputs,
                needed,
                self.shape.vocab,
                self.shape.context,
                f"{name}.data[{index}]",
            )

    def optim_step(self, call: calls.OptimCall, digest: bytes) -> str:
        model = self.model(call.model_id)
        known = model.replay(call.seq_id, digest)
        if known is not None:
            return known
        return self._call(model, call.seq_id, digest, lambda: models.optim_step(model, call))

    async def save(self, call: calls.SaveCall, digest: bytes) -> str:
        model = self.model(call.model_id)
        known = model.replay(call.seq_id, digest)
        if known is not None:
            return known
        if call.sampler and call.path is None:
            return self._save_ephemeral(model, call, digest)
        name = check_name(call.path or f"seq-{call.seq_id or model.last_seq + 1}")
        ref = Ref(model.id, "sampler_weights" if call.sampler else "weights", name)
        if call.overwrite and call.sampler:
            refuse("overwrite", "sampler snapshots are immutable; save under another name")
        if not call.overwrite and (
            ref in model.saving or await asyncio.to_thread(self.store.exists, ref)
        ):
            raise RefusedError(409, f"path: checkpoint {name!r} already exists for {model.id}")
        model = self.model(call.model_id)
        known = model.replay(call.seq_id, digest)
        if known is not None:
            return known
        model.saving.add(ref)
        return self._call(
            model,
            call.seq_id,
            digest,
            lambda: self._save(model, ref, call),
            lambda _: model.saving.discard(ref),
        )

    def _save(self, model: Model, ref: Ref, call: calls.SaveCall) -> dict[str, Any]:
        if not call.sampler:
            return models.save_state(model, ref, self.store, call.overwrite)
        result, weights, weights_id = models.save_snapshot(model, ref, self.store)
        self._snapshots.put(weights_id, weights)
        return result

    def _save_ephemeral(self, model: Model, call: calls.SaveCall, digest: bytes) -> str:
        """An unnamed snapshot comes with the sampling session that is its only name."""

        def work() -> Snapshot:
            name, weights, weights_id = models.save_ephemeral(model, self.store)
            self._snapshots.put(weights_id, weights)
            uri = f"tinker://{model.id}/ephemeral/{name}"
            return Snapshot(weights_id, uri, model.base_model, ephemeral=name)

        def answer(result: object) -> object:
            if not isinstance(result, Snapshot):
                return result
            try:
                session = self.sessions.touch(model.session_id)
            except RefusedError as error:
                self.store.delete_ephemeral(result.ephemeral or "")
                self._snapshots.drop(result.weights_id)
                return Failure(error.reason, "user")
            sampler = self.sampling.add(session, result)
            return {
                "path": None,
                "sampling_session_id": sampler.id,
                "type": "save_weights_for_sampler",
            }

        return self._call(model, call.seq_id, digest, work, translate=answer)

    async def load(self, call: calls.LoadCall, digest: bytes) -> str:
        model = self.model(call.model_id)
        known = model.replay(call.seq_id, digest)
        if known is not None:
            return known
        ref = models.state_ref(call.path)
        meta = await self.checkpoint_meta(ref)
        model = self.model(call.model_id)
        known = model.replay(call.seq_id, digest)
        if known is not None:
            return known
        if model.started:
            refuse(
                "load_weights",
                f"only the first call of a model may load, and {model.id} has "
                "had others; create a new model and load into it",
            )
        models.check_fits(model, meta, call.optimizer)
        return self._call(
            model,
            call.seq_id,
            digest,
            lambda: models.load(model, ref, self.store, call.optimizer),
        )

    async def checkpoint_meta(self, ref: Ref) -> Mapping[str, Any]:
        try:
            return await asyncio.to_thread(self.store.meta, ref)
        except MissingError:
            raise RefusedError(404, f"path: {ref.uri} is not in the store") from None

    def _call(
        self,
        model: Model,
        seq_id: int | None,
        digest: bytes,
        work: Callable[[], object],
        after: Callable[[object], None] | None = None,
        translate: Callable[[object], object] | None = None,
        pack: bool = False,
    ) -> str:
        promise = self._train(model.session_id, work, after, translate, pack)
        model.accept(seq_id, digest, promise.request_id)
        if len(model.seen) > MAX_SEEN:
            del model.seen[next(iter(model.seen))]
        return promise.request_id

    def _train(
        self,
        owner: str,
        work: Callable[[], object],
        after: Callable[[object], None] | None = None,
        translate: Callable[[object], object] | None = None,
        pack: bool = False,
    ) -> Promise:
        """Queue work; its result is encoded on the training thread unless it is translated."""
        promise = self.promises.new(owner)

        def job() -> object:
            result = work()
            return Answer.of(result, pack=pack) if translate is None else result

        def deliver(result: object) -> None:
            if after is not None:
                after(result)
            self.promises.resolve(promise, result if translate is None else translate(result))

        self._training.submit(job, deliver)
        return promise

    # --- what there is

    def live_models(self) -> Mapping[str, Model]:
        return self._models

    def counters(self) -> dict[str, Any]:
        applied = {**self._applied, **{m.id: m.applied for m in self._models.values()}}
        return {
            "sessions": len(self.sessions.ids()),
            "models": sorted(self._models),
            "applied": {name: dict(counts) for name, counts in applied.items()},
            "promises": self.promises.counters(),
            "sampling": self.sampling.counters(),
        }

    async def close(self, timeout: float = 1.5) -> bool:
        """End the threads; False when one is still inside a step that cannot be interrupted."""
        self._sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper
        self.promises.close()
        self._training.stop()
        self._sampling.stop()
        ended = await asyncio.to_thread(self._join, timeout)
        self.store.close()
        return ended

    def _join(self, timeout: float) -> bool:
        return self._sampling.join(timeout / 2) & self._training.join(timeout / 2)
