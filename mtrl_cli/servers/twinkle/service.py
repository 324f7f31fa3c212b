"""The client of a Twinkle server, by Twinkle's own routes.

One session from `connect` to `close`, kept alive by a heartbeat; the server has no call that ends
one. A model is a LoRA adapter whose name the client makes: ``{session}-{name}``, every name once.
Building a call is pure; `training` carries out those of several requests, and
`sampling` gathers turns into sampling calls.

The server keeps the newest sampler snapshot only. A policy that has been replaced is not sampled
any more, since the server would answer with other weights and not say so.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import ContextOverflow, PolicyFailure, Sample, SampleRequest
from mtrl_cli.servers.errors import ServerError, Unknown, Verdict, says_context_full
from mtrl_cli.servers.heartbeat import Heartbeat
from mtrl_cli.servers.interface import (
    Accepted,
    AdamSpec,
    Call,
    Capabilities,
    Datum,
    ForwardBackwardResult,
    LossSpec,
    ModelSpec,
    Recalled,
)
from mtrl_cli.servers.strain import Strain
from mtrl_cli.servers.tinker.codec import MalformedReply, body_of
from mtrl_cli.servers.transport import Transport
from mtrl_cli.servers.twinkle import codec
from mtrl_cli.servers.twinkle.gateway import Gateway
from mtrl_cli.servers.twinkle.losses import LOSSES, Backend, twinkle_loss
from mtrl_cli.servers.twinkle.sampling import Batcher
from mtrl_cli.servers.twinkle.training import (
    Snapshots,
    Step,
    TwinkleCall,
    create,
    free,
    named,
    publish,
)
from mtrl_cli.servers.twinkle.transport import (
    Routes,
    Sender,
    TwinkleAddress,
    routing_headers,
    session_of,
)

T = TypeVar("T")

_METRIC_SECONDS = 5.0
_BASE = "base://"

CAPABILITIES = Capabilities(
    snapshots="newest_only",
    dedupes=False,
    policy_logprobs=False,
    reports_weights=False,
    full_training=False,
    losses=LOSSES,
    loss_reduction="call_mean",
    tempered_logprobs=True,
)


class TwinkleService:
    """Implements `interface.TrainingService`.

    Args:
        address: where the server is, and the token.
        base_model: the model that policies start from, as the server names it.
        backend: the model app's backend.
        template: the class that the server makes features with, such as ``Qwen3_5Template``.
        tokens_per_call: the most prompt tokens of one sampling call.
        connections: connections in the pool.
        sample_timeout: seconds for one sampling call, repetitions included.
        training_timeout: seconds for one training request.
        heartbeat_period: seconds between heartbeats.
        key_variable: the environment variable that users keep the token in, for messages.
    """

    def __init__(
        self,
        address: TwinkleAddress,
        base_model: str,
        *,
        backend: Backend = "transformers",
        template: str = "Template",
        tokens_per_call: int = 16_000,
        connections: int = 256,
        sample_timeout: float = 120.0,
        training_timeout: float = 600.0,
        heartbeat_period: float = 10.0,
        key_variable: str = "TWINKLE_API_KEY",
    ) -> None:
        self._address = address
        self._base_model = base_model
        self._backend = backend
        self._template = template
        self._tokens_per_call = tokens_per_call
        self._sample_timeout = sample_timeout
        self._heartbeat_period = heartbeat_period
        self._routes = Routes(base_model)
        self._transport = Transport(address, connections)
        self._sender = Sender(self._transport, training_timeout)
        self._gateway = Gateway(self._transport, self._routes, key_variable)
        self._session: str | None = None
        self._heartbeat: Heartbeat | None = None
        self._batcher: Batcher | None = None
        self._snapshots = Snapshots()
        self._adapters = 0
        self._losses: dict[str, tuple[str, Mapping[str, float]]] = {}
        self._optimizers: dict[str, Mapping[str, Any] | None] = {}
        """What each adapter's optimizer is set to; None after a load, which brings its own."""

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def session(self) -> str | None:
        return self._session

    @property
    def strain(self) -> Strain:
        return self._transport.strain

    @property
    def closed_for(self) -> float:
        return self._transport.closed_for

    @property
    def gone(self) -> str | None:
        return None

    def describe(self) -> str:
        return f"Twinkle at {self._address.url}"

    # --- its life ---------------------------------------------------------------------------

    async def check(self) -> None:
        await self._transport.open()
        try:
            await self._gateway.check_model()
        finally:
            await self._transport.close()

    async def connect(self) -> None:
        await self._transport.open()
        try:
            await self._gateway.check_model()
            self._session = await self._gateway.create_session()
            await self._gateway.set_template(self._session, self._template)
        except BaseException:
            await self._transport.close()
            raise
        headers = routing_headers(self._session, self._session)
        self._batcher = Batcher(
            self._transport,
            self._routes.sampler("sample"),
            headers,
            self._adapter_uri,
            seconds=self._sample_timeout,
            tokens=self._tokens_per_call,
        )
        self._heartbeat = Heartbeat(
            self._address,
            self._session,
            self._heartbeat_period,
            path="twinkle/session_heartbeat",
            headers=headers,
        )
        self._heartbeat.start()

    async def close(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        batcher, self._batcher = self._batcher, None
        try:
            if batcher is not None:
                await batcher.close()
        finally:
            await self._transport.close()

    # --- training calls ---------------------------------------------------------------------

    def create_model(self, spec: ModelSpec) -> Call[str]:
        if self._session is None:
            raise RuntimeError("connect comes before create_model")
        if spec.loss is None or spec.adam is None or spec.lora_rank is None:
            raise ValueError("a Twinkle adapter needs its rank, loss and optimizer when it is made")
        self._adapters += 1
        name = f"mtrl{self._adapters}"
        model = f"{self._session}-{name}"
        loss = twinkle_loss(spec.loss)
        optimizer = codec.optimizer_fields(spec.adam, self._backend)
        add = self._step(
            "create_model",
            "add_adapter_to_model",
            {"adapter_name": name, "config": codec.lora_config(spec)},
        )
        template = {"template_cls": self._template, "model_id": self._base_model}
        settings = [
            self._setting("set_template", name, template),
            self._setting("set_processor", name, {"processor_cls": "InputProcessor"}),
            self._setting("set_loss", name, {"loss_cls": loss.name, **loss.parameters}),
            self._setting("set_optimizer", name, optimizer),
        ]
        self._losses[model] = (spec.loss.name, dict(spec.loss.config))
        self._optimizers[model] = codec.optimizer_parameters(spec.adam)
        unload = self._unload_step(model)
        return _call(
            add, None, None, lambda sender, _: create(sender, model, add, settings, unload)
        )

    def forward_backward(
        self, model: str, seq: int, data: Sequence[Datum], loss: LossSpec
    ) -> Call[ForwardBackwardResult]:
        if self._losses.get(model) != (loss.name, dict(loss.config)):
            raise ValueError(f"{model} was made for the loss {self._losses.get(model)}, not {loss}")
        body = codec.forward_backward_body(_adapter(model), data, loss, self._backend)
        step = Step("forward_backward", self._routes.model("forward_backward"), body)

        async def run(sender: Sender, accepted: Accepted) -> ForwardBackwardResult:
            reply = await sender.post(step.kind, step.path, step.body, model)
            try:
                return await asyncio.to_thread(codec.forward_backward_of, reply, data)
            except MalformedReply as error:
                raise Unknown(f"forward_backward {seq} was executed, but {error}") from None

        return _call(step, model, seq, run)

    def optim_step(self, model: str, seq: int, adam: AdamSpec) -> Call[Mapping[str, float]]:
        name, parameters = _adapter(model), codec.optimizer_parameters(adam)
        fields: dict[str, Any] = {
            "max_grad_norm": adam.grad_clip_norm or codec.UNCLIPPED,
            "norm_type": 2,
            "adapter_name": name,
        }
        if self._optimizers.get(model) != parameters:
            fields["optim_params"] = parameters
        step = self._step("optim_step", "clip_grad_and_step", fields)
        metric = self._step(
            "metrics", "calculate_metric", {"is_training": True, "adapter_name": name}
        )

        async def run(sender: Sender, accepted: Accepted) -> Mapping[str, float]:
            await sender.post(step.kind, step.path, step.body, model)
            self._optimizers[model] = parameters
            try:
                reply = await sender.post(
                    metric.kind, metric.path, metric.body, model, seconds=_METRIC_SECONDS
                )
                return codec.metrics_of(reply)
            except (ServerError, MalformedReply):
                return {}  # the step was made; its figures are for people

        return _call(step, model, seq, run)

    def publish(self, model: str, seq: int, name: str) -> Call[str]:
        fields = {"name": _checkpoint(name), "adapter_name": _adapter(model)}
        step = self._step(
            "publish", "save", {**fields, "save_optimizer": False, "is_sampler": True}
        )
        return _call(
            step, model, seq, lambda sender, _: publish(sender, model, step, self._snapshots)
        )

    def save_state(self, model: str, seq: int, name: str) -> Call[str]:
        fields = {"name": _checkpoint(name), "adapter_name": _adapter(model)}
        step = self._step("save_state", "save", {**fields, "save_optimizer": True})

        async def run(sender: Sender, accepted: Accepted) -> str:
            reply = await sender.post(step.kind, step.path, step.body, model)
            return named(reply, "twinkle_path", f"{step.kind} {seq}")

        return _call(step, model, seq, run)

    def load_state(self, model: str, seq: int, uri: str) -> Call[None]:
        fields = {"name": uri, "adapter_name": _adapter(model), "resume_only_model": False}
        step = self._step("load_state", "resume_from_checkpoint", fields)

        async def run(sender: Sender, accepted: Accepted) -> None:
            await sender.post(step.kind, step.path, step.body, model)
            self._optimizers[model] = None

        return _call(step, model, seq, run)

    def unload_model(self, model: str) -> Call[None]:
        step = self._unload_step(model)
        return _call(
            step, model, None, lambda sender, accepted: free(sender, model, step, accepted)
        )

    def stop_waiting(self) -> None:
        self._transport.stop_waiting()

    async def execute(self, call: Call[T], accepted: Accepted) -> T:
        if not isinstance(call, TwinkleCall):
            raise TypeError("this call was built by another client")
        try:
            value: T = await call.run(self._sender, accepted)
        except ServerError as error:
            error.args = (self._transport.keys.without(str(error)),)
            raise
        return value

    async def find_saved(self, call: Call[str]) -> str | None:
        return None  # a sampler snapshot has no name of ours, and states are not listed

    async def recall(self, kind: str, request: str, seconds: float) -> Recalled:
        return "unknown"  # there are no promises to ask for

    def _step(self, kind: str, route: str, fields: Mapping[str, Any]) -> Step:
        return Step(kind, self._routes.model(route), body_of(fields))

    def _setting(self, route: str, adapter: str, fields: Mapping[str, Any]) -> Step:
        return self._step(route, route, {"adapter_name": adapter, **fields})

    def _unload_step(self, model: str) -> Step:
        return Step("unload_model", self._routes.unload, body_of({"model_id": model}))

    # --- reading calls ----------------------------------------------------------------------

    async def base_policy(self) -> str:
        return _BASE + self._base_model

    async def sample(self, request: SampleRequest) -> Sample:
        if self._batcher is None:
            raise RuntimeError("connect comes before sampling")
        newest = self._snapshots.newest_instead_of(request.policy)
        if newest is not None:
            raise PolicyFailure(
                f"policy {request.policy} is gone: the server keeps the newest snapshot of an "
                f"adapter only, which is {newest}",
                permanent=True,
            )
        answer = await self._batcher.sample(request)
        if not isinstance(answer, Verdict):
            return answer
        if says_context_full(answer):
            raise ContextOverflow(answer.says)
        raise PolicyFailure(
            f"sampling failed at {self._address.url}: {answer.says}",
            permanent=answer.outcome == "permanent",
        )

    async def logprobs(self, policy: str, tokens: Sequence[int]) -> NDArray[np.float32]:
        raise ServerError("Twinkle gives no logprobs of given tokens under a policy")

    def _adapter_uri(self, policy: str) -> str | None:
        return None if policy == _BASE + self._base_model else policy


def _adapter(model: str) -> str:
    """The client's part of an adapter's full name."""
    return model[len(session_of(model)) + 1 :]


def _checkpoint(name: str) -> str:
    """A name as the server would write it: it knows letters, digits, ``_`` and ``-``."""
    return "".join(char if char.isalnum() or char in "_-" else "_" for char in name)


def _call(
    step: Step,
    model: str | None,
    seq: int | None,
    run: Callable[[Sender, Accepted], Awaitable[T]],
) -> TwinkleCall[T]:
    digest = hashlib.sha256(step.body).hexdigest()
    return TwinkleCall(step.kind, step.path, step.body, digest, model, seq, _undecoded, run=run)


def _undecoded(reply: Any) -> Any:
    """`TwinkleCall.run` reads its replies itself."""
    return reply
