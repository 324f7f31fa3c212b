"""Sampling sessions and asample: which weights a request means, and whether it fits.

A sampling session fixes its weights when it is made: a named snapshot, an unnamed one, or the
base model. The session that made it owns it. A request may also name a snapshot's URI or the base
model directly, and then belongs to nobody.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass

from mtrl_cli.local import calls
from mtrl_cli.local.engine import SampleSpec, Shape
from mtrl_cli.local.errors import Failure, RefusedError
from mtrl_cli.local.promises import Promise, Promises
from mtrl_cli.local.scheduler import SampleWork, SamplingThread
from mtrl_cli.local.sessions import Graveyard, Session, Sessions
from mtrl_cli.local.snapshots import BASE_ID, Snapshot, Snapshots
from mtrl_cli.local.store import MissingError, Store, parse_uri
from mtrl_cli.local.validate import check_tokens, refuse

MAX_WAITING = 65_536


@dataclass(frozen=True)
class Sampler:
    id: str
    session_id: str
    snapshot: Snapshot


class Sampling:
    def __init__(
        self,
        base_model: str,
        shape: Shape,
        store: Store,
        sessions: Sessions,
        promises: Promises,
        thread: SamplingThread,
        snapshots: Snapshots,
    ) -> None:
        self._shape = shape
        self._store = store
        self._sessions = sessions
        self._promises = promises
        self._thread = thread
        self._snapshots = snapshots
        self._base = Snapshot(BASE_ID, base_model, base_model)
        self._samplers: dict[str, Sampler] = {}
        self._gone = Graveyard()
        self._works: dict[Promise, SampleWork] = {}
        self.completed: Counter[str] = Counter()
        self.submitted = 0
        self.cancelled = 0

    # --- sampling sessions

    async def open(self, call: calls.SamplingSessionCall, digest: bytes) -> dict[str, object]:
        kind = "sampling_session_seq_id"
        session = self._sessions.touch(call.session_id)
        replay = session.replay(kind, call.sampling_session_seq_id, digest)
        if replay is not None:
            return replay
        snapshot = await self._resolve(call.model_path, call.base_model)
        if snapshot.weights_id != BASE_ID:
            await asyncio.to_thread(self._snapshots.get, snapshot)
        session = self._sessions.touch(call.session_id)
        replay = session.replay(kind, call.sampling_session_seq_id, digest)
        if replay is not None:
            return replay
        sampler = self.add(session, snapshot)
        reply = {"type": "create_sampling_session", "sampling_session_id": sampler.id}
        return session.remember(kind, call.sampling_session_seq_id, digest, reply)

    def add(self, session: Session, snapshot: Snapshot) -> Sampler:
        sampler = Sampler(f"sampling_{secrets.token_hex(6)}", session.id, snapshot)
        self._samplers[sampler.id] = sampler
        session.samplers.add(sampler.id)
        return sampler

    def find(self, sampler_id: str) -> Sampler:
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            raise self._gone.refuse("sampling_session_id", sampler_id)
        return sampler

    async def _resolve(self, model_path: str | None, base_model: str | None) -> Snapshot:
        if model_path is None:
            self.check_base(base_model or "")
            return self._base
        ref = parse_uri(model_path, "model_path")
        if ref.kind != "sampler_weights":
            refuse(
                "model_path",
                f"{ref.uri} is a training state; sample from what "
                "save_weights_for_sampler returned",
            )
        try:
            meta = await asyncio.to_thread(self._store.meta, ref)
        except MissingError:
            raise RefusedError(404, f"model_path: {ref.uri} is not in the store") from None
        self.check_base(str(meta.get("base_model")), "model_path")
        return Snapshot(str(meta.get("id")), ref.uri, self._base.base_model, ref=ref)

    def check_base(self, name: str, field: str = "base_model") -> None:
        if name != self._base.base_model:
            refuse(field, f"{name!r:.80} is not served; allowed: {self._base.base_model}")

    # --- requests

    def snapshot_of(self, call: calls.SampleCall) -> tuple[Snapshot, str] | None:
        """The weights of a request and who owns it; None when the store must be asked."""
        if call.sampling_session_id is not None:
            sampler = self.find(call.sampling_session_id)
            self._sessions.touch(sampler.session_id)
            return sampler.snapshot, sampler.session_id
        if call.model_path is None:
            self.check_base(call.base_model or "")
            return self._base, ""
        return None

    def submit(self, call: calls.SampleCall) -> str | Coroutine[None, None, str]:
        """Queue a request and return its id; a coroutine when the store must be asked first."""
        specs = self._specs(call)
        found = self.snapshot_of(call)
        if found is None:
            return self._submit_stored(call.model_path, specs)
        return self._queue(*found, specs)

    async def _submit_stored(self, model_path: str | None, specs: list[SampleSpec]) -> str:
        return self._queue(await self._resolve(model_path, None), "", specs)

    def _queue(self, snapshot: Snapshot, owner: str, specs: list[SampleSpec]) -> str:
        if len(self._works) >= MAX_WAITING:
            raise RefusedError(429, f"asample: {MAX_WAITING} requests are waiting; try again later")
        promise = self._promises.new(owner)
        work = SampleWork(snapshot, specs, lambda result: self._finish(promise, result))
        self._works[promise] = work
        self.submitted += 1
        self._thread.submit(work)
        return promise.request_id

    def _finish(self, promise: Promise, result: object) -> None:
        work = self._works.pop(promise, None)
        if work is not None and not isinstance(result, Failure):
            self.completed[work.snapshot.model_id] += 1
        self._promises.resolve(promise, result)

    def _specs(self, call: calls.SampleCall) -> list[SampleSpec]:
        length, context = len(call.tokens), self._shape.context
        if length == 0:
            refuse("prompt", "no tokens; at least one is needed")
        check_tokens(call.tokens, self._shape.vocab, "prompt")
        max_tokens = call.max_tokens
        if max_tokens is None:
            max_tokens = max(1, context - length)
        if length + max_tokens > context:
            refuse(
                "sampling_params.max_tokens",
                f"{length} prompt tokens + {max_tokens} exceed the context of {context}",
            )
        for stop in call.stop_ids:
            if not 0 <= stop < self._shape.vocab:
                refuse(
                    "sampling_params.stop", f"token {stop} is outside 0..{self._shape.vocab - 1}"
                )
        return [
            SampleSpec(
                tokens=call.tokens,
                max_tokens=max_tokens,
                stop_ids=call.stop_ids,
                temperature=call.temperature,
                seed=derived_seed(call.seed, index),
                top_k=call.top_k,
                top_p=call.top_p,
                prompt_logprobs=call.prompt_logprobs and index == 0,
            )
            for index in range(call.num_samples)
        ]

    def cancel(self, request_id: str) -> bool:
        """Stop a request that nobody waits for any more; False when there is nothing to stop.

        Its promise ends with an error that says so.
        """
        promise = next((p for p in self._works if p.request_id == request_id), None)
        if promise is None:
            return False
        self._thread.cancel(self._works.pop(promise))
        self.cancelled += 1
        self._promises.resolve(promise, Failure("cancelled; nobody waits for it", "user"))
        return True

    # --- the end of a session

    def release(self, session: Session, reason: str) -> None:
        """Cancel what the session has in flight and drop its sampling sessions."""
        for promise in [p for p in self._works if p.owner == session.id]:
            self._thread.cancel(self._works.pop(promise))
            self._promises.resolve(
                promise, Failure(f"{session.id} is gone: {reason}; not executed", "user")
            )
            self.cancelled += 1
        for sampler_id in session.samplers:
            sampler = self._samplers.pop(sampler_id)
            self._gone.bury(sampler_id, reason)
            if sampler.snapshot.ephemeral is not None:
                self._store.delete_ephemeral(sampler.snapshot.ephemeral)
                self._snapshots.drop(sampler.snapshot.weights_id)

    def counters(self) -> dict[str, object]:
        return {
            "sampling_sessions": len(self._samplers),
            "in_flight": len(self._works),
            "submitted": self.submitted,
            "cancelled": self.cancelled,
            "completed": dict(self.completed),
            "steps": self._thread.steps,
            "rows": self._thread.rows,
            "weights": self._snapshots.counters(),
        }


def derived_seed(seed: int | None, index: int) -> int | None:
    """The seed of one of several samples: the first keeps the request's own."""
    if seed is None or index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest())
