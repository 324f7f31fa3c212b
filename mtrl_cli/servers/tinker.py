"""The client of a Tinker server, JSON bodies: hosted Tinker, SkyRL tx, the embedded server.

One session from `connect` to `close`, kept alive by a heartbeat; calls that change something are
built here as plain values and executed by `tinker_training`; turns are sampled by
`tinker_sampling`. Sequence ids count per model and come from the caller.
"""

import asyncio
import contextlib
import difflib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import (
    ContextOverflow,
    PolicyFailure,
    Sample,
    SampleRequest,
    SamplingParams,
)
from mtrl_cli.servers import tinker_codec as codec
from mtrl_cli.servers.errors import (
    AuthError,
    Budget,
    Refused,
    ServerError,
    Verdict,
    one_line,
    says_context_full,
)
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
)
from mtrl_cli.servers.tinker_sampling import Counts, Sampling, base_uri
from mtrl_cli.servers.tinker_training import Training
from mtrl_cli.servers.transport import Address, NoReply, Reply, Transport

T = TypeVar("T")

_CONNECT_SECONDS = 20.0
_CONNECT_ATTEMPTS = 4
_FINISH_SECONDS = 2.0
_FINISH = codec.body_of({"reason": {"type": "success"}, "detail": None})


class TinkerService:
    """Implements `interface.TrainingService`.

    Args:
        address: where the server is, and the key to it.
        base_model: the model that policies start from.
        capabilities: what the server is known to do.
        connections: sampling requests in flight at once.
        sample_timeout: seconds for one sampled turn, polls and repetitions included.
        training_timeout: seconds for one training call, polls included.
        heartbeat_period: seconds between heartbeats.
        key_variable: the environment variable that users keep the key in, for messages.
    """

    def __init__(
        self,
        address: Address,
        base_model: str,
        capabilities: Capabilities,
        *,
        connections: int = 256,
        sample_timeout: float = 120.0,
        training_timeout: float = 600.0,
        heartbeat_period: float = 10.0,
        key_variable: str = "TINKER_API_KEY",
    ) -> None:
        self._address = address
        self._base_model = base_model
        self._capabilities = capabilities
        self._sample_timeout = sample_timeout
        self._heartbeat_period = heartbeat_period
        self._key_variable = key_variable
        self.counts = Counts()
        self._transport = Transport(address, connections)
        self._training = Training(
            self._transport,
            training_timeout,
            dedupes=capabilities.dedupes,
            counts=self.counts,
        )
        self._session: str | None = None
        self._sampling: Sampling | None = None
        self._heartbeat: Heartbeat | None = None
        self._models = 0
        self._base_weights: str | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # --- its life ---------------------------------------------------------------------------

    @property
    def session(self) -> str | None:
        return self._session

    def describe(self) -> str:
        return f"Tinker API at {self._address.url}"

    async def check(self) -> None:
        await self._transport.open()
        try:
            await self._check_models()
        finally:
            await self._transport.close()

    async def connect(self) -> None:
        await self._transport.open()
        try:
            await self._check_models()
            self._session = await self._create_session()
        except BaseException:
            await self._transport.close()
            raise
        self._sampling = Sampling(self._transport, self._session, self._sample_timeout, self.counts)
        self._heartbeat = Heartbeat(self._address, self._session, self._heartbeat_period)
        self._heartbeat.start()

    async def close(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        sampling, self._sampling = self._sampling, None
        try:
            if sampling is not None:
                await sampling.close()
                await self._finish_session()
        finally:
            await self._transport.close()

    async def _finish_session(self) -> None:
        """Let the server free what the session holds now, and not when its beats have stopped.

        Best effort: some servers have no such route, and nothing depends on it.
        """
        path = f"sessions/{quote(self._session or '', safe='')}/finish"
        with contextlib.suppress(NoReply, TimeoutError):
            async with asyncio.timeout(_FINISH_SECONDS):
                await self._transport.single("POST", path, _FINISH, _FINISH_SECONDS)

    async def _check_models(self) -> None:
        reply = await self._reach("GET", "get_server_capabilities", None)
        if reply is None:
            return  # older servers do not have it; the base model is checked at first use
        models = reply.get("supported_models")
        if not isinstance(models, list):
            return
        offered = {
            str(model["model_name"]): model
            for model in models
            if isinstance(model, dict) and model.get("model_name")
        }
        if not offered:
            return
        if self._base_model not in offered:
            raise UsageError(self._unknown_model(list(offered)))
        window = offered[self._base_model].get("max_context_length")
        if type(window) is int and window > 0:
            self._capabilities = replace(self._capabilities, context=window)

    async def _create_session(self) -> str:
        body: dict[str, Any] = {
            "tags": [],
            "user_metadata": {},
            "sdk_version": "0.16.1",
            "project_id": None,
        }
        reply = await self._reach("POST", "create_session", codec.body_of(body))
        if reply is None:
            raise ServerError(
                f"{self._address.url} is not a Tinker server (HTTP 404): correct server.base_url"
            )
        try:
            return codec.name_in(reply, "session_id")
        except codec.MalformedReply as error:
            raise ServerError(f"{self._address.url} opened no session: {error}") from None

    async def _reach(self, method: str, path: str, body: bytes | None) -> Mapping[str, Any] | None:
        """One call while connecting. None for 404; every other failure ends in one line."""
        budget = Budget(_CONNECT_SECONDS, _CONNECT_ATTEMPTS)
        while True:
            try:
                reply = await self._transport.single(method, path, body, budget.left)
            except NoReply as error:
                raise ServerError(
                    f"no training server answers at {self._address.url} ({error}): "
                    "start it, or correct server.base_url"
                ) from None
            if reply.status == 200:
                return self._object(reply)
            if reply.status == 404:
                return None
            verdict = self._transport.judge(reply, training=True)
            pause = budget.pause(verdict.retry_after) if verdict.outcome == "transient" else None
            if pause is None:
                raise self._turned_away(verdict)
            await asyncio.sleep(pause)

    def _object(self, reply: Reply) -> Mapping[str, Any]:
        try:
            return codec.parse(reply.body)
        except codec.MalformedReply as error:
            raise ServerError(
                f"{self._address.url} is not a Tinker server ({error}): correct server.base_url"
            ) from None

    def _turned_away(self, verdict: Verdict) -> ServerError:
        url = self._address.url
        if verdict.status in (401, 403):
            if self._address.api_key is None:
                return AuthError(
                    f"{url} wants an API key and none is set ({verdict.says}): "
                    f"set {self._key_variable}"
                )
            return AuthError(
                f"{url} does not take this API key ({verdict.says}): correct {self._key_variable}"
            )
        if verdict.status is not None and 300 <= verdict.status < 400:
            return Refused(f"{url} redirects ({verdict.says}): write its final address")
        return Refused(
            f"{url} does not let us in ({verdict.says})", transient=verdict.outcome == "transient"
        )

    def _unknown_model(self, offered: Sequence[str]) -> str:
        near = difflib.get_close_matches(self._base_model, offered, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        shown = ", ".join(sorted(offered)[:10]) + (", …" if len(offered) > 10 else "")
        return one_line(
            f"server.base_model: {self._base_model!r} is not served by {self._address.url}; "
            f"{hint}served: {shown}",
            600,
        )

    # --- training calls ---------------------------------------------------------------------

    def create_model(self, spec: ModelSpec) -> Call[str]:
        if self._session is None:
            raise RuntimeError("connect comes before create_model")
        fields = codec.model_fields(spec, self._session, self._models)
        self._models += 1
        body = codec.body_of(fields)
        return _call("create_model", "create_model", body, lambda r: codec.name_in(r, "model_id"))

    def forward_backward(
        self, model: str, seq: int, data: Sequence[Datum], loss: LossSpec
    ) -> Call[ForwardBackwardResult]:
        body = codec.forward_backward_body(model, seq, data, loss)
        kind = "forward_backward"
        return _call(kind, kind, body, codec.forward_backward_of, model, seq)

    def optim_step(self, model: str, seq: int, adam: AdamSpec) -> Call[Mapping[str, float]]:
        fields = {"adam_params": codec.adam_fields(adam), "model_id": model, "seq_id": seq}
        body = codec.body_of(fields)
        return _call("optim_step", "optim_step", body, codec.metrics_of, model, seq)

    def publish(self, model: str, seq: int, name: str) -> Call[str]:
        body = codec.body_of({"model_id": model, "path": name, "seq_id": seq})
        path = "save_weights_for_sampler"
        return _call("publish", path, body, lambda r: codec.name_in(r, "path"), model, seq)

    def save_state(self, model: str, seq: int, name: str) -> Call[str]:
        body = codec.body_of({"model_id": model, "path": name, "seq_id": seq})
        path = "save_weights"
        return _call("save_state", path, body, lambda r: codec.name_in(r, "path"), model, seq)

    def load_state(self, model: str, seq: int, uri: str) -> Call[None]:
        fields = {"model_id": model, "path": uri, "optimizer": True, "seq_id": seq}
        body = codec.body_of(fields)
        return _call("load_state", "load_weights", body, lambda r: None, model, seq)

    def unload_model(self, model: str) -> Call[None]:
        body = codec.body_of({"model_id": model})
        return _call("unload_model", "unload_model", body, lambda r: None, model)

    async def execute(self, call: Call[T], accepted: Accepted) -> T:
        return await self._training.execute(call, accepted)

    # --- reading calls ----------------------------------------------------------------------

    async def base_policy(self) -> str:
        return base_uri(self._base_model)

    async def sample(self, request: SampleRequest) -> Sample:
        answer = await self._connected().run(request)
        if isinstance(answer, Verdict):
            if says_context_full(answer):
                raise ContextOverflow(answer.says)
            raise PolicyFailure(
                self._says("sampling failed", answer), permanent=answer.outcome == "permanent"
            )
        try:
            sample = codec.sample_of(answer)
        except codec.MalformedReply as error:
            raise PolicyFailure(f"sampling at {self._address.url} failed: {error}") from None
        if sample.policy is None or sample.policy == request.policy:
            return sample
        return replace(sample, policy=self._policy_named(request.policy, sample.policy))

    async def logprobs(self, policy: str, tokens: Sequence[int]) -> NDArray[np.float32]:
        request = SampleRequest(policy, tokens, 1, (), 0, SamplingParams())
        answer = await self._connected().run(request, prompt_logprobs=True)
        if isinstance(answer, Verdict):
            raise ServerError(self._says(f"no logprobs under {policy}", answer))
        try:
            return codec.prompt_logprobs_of(answer, len(tokens))
        except codec.MalformedReply as error:
            raise ServerError(f"no logprobs under {policy}: {error}") from None

    def _policy_named(self, asked: str, weights: str) -> str:
        """The policy that the server's name for its weights stands for.

        A server has a name of its own for the base model; the first one it gives is remembered,
        so that a later change still shows.
        """
        if asked != base_uri(self._base_model):
            return weights
        if self._base_weights is None:
            self._base_weights = weights
        return asked if weights == self._base_weights else weights

    def _connected(self) -> Sampling:
        if self._sampling is None:
            raise RuntimeError("connect comes before sampling")
        return self._sampling

    def _says(self, what: str, verdict: Verdict) -> str:
        lost = self._heartbeat.lost if self._heartbeat is not None else None
        gone = "" if lost is None else f" (the server forgot the session: {lost})"
        return f"{what} at {self._address.url}: {verdict.says}{gone}"


def _call(
    kind: str,
    path: str,
    body: bytes,
    decode: Callable[[Any], T],
    model: str | None = None,
    seq: int | None = None,
) -> Call[T]:
    return Call(kind, path, body, hashlib.sha256(body).hexdigest(), model, seq, decode)
