"""The client of a Tinker server: hosted Tinker, SkyRL tx, the embedded server.

One session from `connect` to `close` (`session`), kept alive by a heartbeat; calls that
change something are built as plain values (`calls`) and executed by `training`;
turns are sampled by `sampling`. Bodies are JSON or protobuf (`formats`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import (
    ContextOverflow,
    PolicyFailure,
    Sample,
    SampleRequest,
    SamplingParams,
)
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import ServerError, Verdict, says_context_full
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
    SnapshotFacts,
)
from mtrl_cli.servers.strain import Strain
from mtrl_cli.servers.tinker.calls import Calls, flat
from mtrl_cli.servers.tinker.codec import MalformedReply
from mtrl_cli.servers.tinker.formats import Formats, prompt_logprobs_of, sample_of
from mtrl_cli.servers.tinker.sampling import Counts, Sampling, base_uri
from mtrl_cli.servers.tinker.session import Door, Offer
from mtrl_cli.servers.tinker.snapshots import TinkerSnapshots
from mtrl_cli.servers.tinker.training import Training
from mtrl_cli.servers.transport import Transport

T = TypeVar("T")

_LOGPROBS_ASKED = 3
"""How often the logprobs of one sequence are asked for while what comes is none. A sample that is
none fails its own episode; these are a whole step's."""


class TinkerService:
    """Implements `interface.TrainingService` and `interface.SnapshotStore`.

    Args:
        address: where the server is, and the key to it.
        base_model: the model that policies start from.
        capabilities: what the server is known to do.
        connections: sampling requests in flight at once.
        sample_timeout: seconds for one sampled turn, polls and repetitions included.
        training_timeout: seconds for one training call, polls included.
        heartbeat_period: seconds between heartbeats.
        key_variable: the environment variable that users keep the key in, for messages.
        formats: the format of bodies; found out by the first pass where it is not given.
        wide: the server takes slashes in the names of checkpoints, and seeds beyond 31 bits. Not
            every one does, and for those slashes become dashes and seeds are cut.
        gone: says how the server ended, once it has.
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
        formats: Formats | None = None,
        wide: bool = False,
        gone: Callable[[], str | None] | None = None,
    ) -> None:
        self._address = address
        self._base_model = base_model
        self._capabilities = capabilities
        self._sample_timeout = sample_timeout
        self._heartbeat_period = heartbeat_period
        self.counts = Counts()
        self._formats = formats or Formats.of("auto")
        self._calls = Calls(self._formats, str if wide else flat)
        self._transport = Transport(address, connections, gone or (lambda: None))
        self._door = Door(self._transport, key_variable, self._formats)
        self._training = Training(
            self._transport,
            training_timeout,
            dedupes=capabilities.dedupes,
            counts=self.counts,
            formats=self._formats,
        )
        self._session: str | None = None
        self._sampling: Sampling | None = None
        self._heartbeat: Heartbeat | None = None
        self._seed_bits = 63 if wide else 31
        self._models = 0
        self._base_weights: str | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # --- its life ---------------------------------------------------------------------------

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
        return self._transport.gone()

    def describe(self) -> str:
        return f"Tinker API at {self._address.url}"

    async def check(self) -> None:
        await self._transport.open()
        try:
            self._take(await self._door.look(self._base_model))
        finally:
            await self._transport.close()

    async def connect(self) -> None:
        await self._transport.open()
        try:
            self._take(await self._door.look(self._base_model))
            self._session = await self._door.open_session()
        except BaseException:
            await self._transport.close()
            raise
        self._sampling = Sampling(
            self._transport,
            self._session,
            self._sample_timeout,
            self.counts,
            self._formats,
            cancels=self._capabilities.cancels,
            seed_bits=self._seed_bits,
        )
        self._heartbeat = Heartbeat(
            self._address, self._session, self._heartbeat_period, keys=self._transport.keys
        )
        self._heartbeat.start()

    def _take(self, offer: Offer) -> None:
        context = self._capabilities.context if offer.context is None else offer.context
        self._capabilities = replace(self._capabilities, context=context, cancels=offer.cancels)

    async def close(self) -> None:
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        sampling, self._sampling = self._sampling, None
        try:
            if sampling is not None and self._session is not None:
                await sampling.close()
                await self._door.finish_session(self._session)
        finally:
            await self._transport.close()

    # --- training calls ---------------------------------------------------------------------

    def create_model(self, spec: ModelSpec) -> Call[str]:
        if self._session is None:
            raise RuntimeError("connect comes before create_model")
        call = self._calls.create_model(spec, self._session, self._models)
        self._models += 1
        return call

    def forward_backward(
        self, model: str, seq: int, data: Sequence[Datum], loss: LossSpec
    ) -> Call[ForwardBackwardResult]:
        return self._calls.forward_backward(model, seq, data, loss)

    def optim_step(self, model: str, seq: int, adam: AdamSpec) -> Call[Mapping[str, float]]:
        return self._calls.optim_step(model, seq, adam)

    def publish(self, model: str, seq: int, name: str) -> Call[str]:
        return self._calls.publish(model, seq, name)

    def save_state(self, model: str, seq: int, name: str) -> Call[str]:
        return self._calls.save_state(model, seq, name)

    def load_state(self, model: str, seq: int, uri: str) -> Call[None]:
        return self._calls.load_state(model, seq, uri)

    def unload_model(self, model: str) -> Call[None]:
        return self._calls.unload_model(model)

    def stop_waiting(self) -> None:
        self._transport.stop_waiting()

    async def execute(self, call: Call[T], accepted: Accepted) -> T:
        return await self._training.execute(call, accepted)

    async def find_saved(self, call: Call[str]) -> str | None:
        return await self._training.find_saved(call)

    async def recall(self, kind: str, request: str, seconds: float) -> Recalled:
        return await self._training.recall(kind, request, seconds)

    # --- reading calls ----------------------------------------------------------------------

    async def base_policy(self) -> str:
        return base_uri(self._base_model)

    async def sample(self, request: SampleRequest) -> Sample:
        answer = await self._connected().run(request)
        if isinstance(answer, Verdict):
            if says_context_full(answer):
                raise ContextOverflow(self._transport.keys.without(answer.says))
            raise PolicyFailure(
                self._says("sampling failed", answer), permanent=answer.outcome == "permanent"
            )
        try:
            sample = sample_of(answer)
        except MalformedReply as error:
            told = self._transport.keys.without(str(error))
            raise PolicyFailure(f"sampling at {self._address.url} failed: {told}") from None
        if sample.policy is None or sample.policy == request.policy:
            return sample
        return sample._replace(policy=self._policy_named(request.policy, sample.policy))

    async def logprobs(self, policy: str, tokens: Sequence[int]) -> NDArray[np.float32]:
        request = SampleRequest(policy, tokens, 1, (), 0, SamplingParams())
        asked = 0
        while True:
            asked += 1
            answer = await self._connected().run(request, prompt_logprobs=True)
            if isinstance(answer, Verdict):
                raise ServerError(self._says(f"no logprobs under {policy}", answer))
            try:
                return prompt_logprobs_of(answer, len(tokens))
            except MalformedReply as error:
                if asked == _LOGPROBS_ASKED:
                    told = self._transport.keys.without(str(error))
                    raise ServerError(f"no logprobs under {policy}: {told}") from None

    async def snapshot(self, uri: str) -> SnapshotFacts | None:
        return await TinkerSnapshots(self._address).facts(uri)

    async def download(self, uri: str, folder: Path) -> None:
        await TinkerSnapshots(self._address).download(uri, folder)

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
        says = self._transport.keys.without(verdict.says)
        return f"{what} at {self._address.url}: {says}{gone}"
