"""The one interface of training services.

A **training call** is anything that changes what the server holds: create and unload of a model,
forward/backward, optimizer step, publish, save and load of state. It is built first, as a `Call`
that is complete and has a digest, and executed second. In between, its intent goes to the
ledger: that is what lets a run tell a call that surely did not happen from one that may have.

``execute`` never sends a training call twice. It ends in a value, in `Refused` (surely not
executed) or in `Unknown` (it may have been); see `servers.errors`.

A **reading call** (sample, logprobs) changes nothing and is retried within one budget.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import Sample, SampleRequest
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.strain import Strain

T = TypeVar("T")

Snapshots = Literal["immutable", "newest_only", "live"]

Recalled = Literal["done", "refused", "unknown"]
"""The outcome of a call, as a server still knows it."""

LossReduction = Literal["sum", "datum_mean", "call_mean"]
"""How a server makes one loss of the per-token losses of all calls before an optimizer step.

- ``sum``: their sum (the Tinker API's convention).
- ``datum_mean``: the mean over a datum's positions, prompt and observations included, then over
  all datums since the last optimizer step, whatever calls they came in (SkyRL tx).
- ``call_mean``: the sum over a call's tokens, then the mean over the calls since the last
  optimizer step (Twinkle, whose client undoes the averages within a call).
"""

RETURN_SECONDS = 20.0
"""What gives back what a server holds is sent for so long, where that is away or refuses for now:
who waits for it wants to leave."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a server declares; what it cannot do changes the plan of a run visibly."""

    snapshots: Snapshots
    dedupes: bool
    """A training call sent twice with one sequence id is executed once."""
    policy_logprobs: bool
    """It computes logprobs of given tokens under a given policy (needed for KL)."""
    reports_weights: bool
    """A sample says which weights produced it."""
    full_training: bool
    """It can train all weights, not only a LoRA adapter."""
    losses: frozenset[str] = frozenset({"importance_sampling", "ppo", "cispo"})
    """The policy-gradient losses that it computes."""
    context: int | None = None
    leaks_gradients: bool = False
    """Gradients that an unloaded model was left with reach the next model in its place."""
    cancels: bool = False
    """It can be told to stop a sampling request; found out when connecting."""
    loss_reduction: LossReduction | None = None
    """None: not known. A step is then one call, weighted as for ``sum``."""
    tempered_logprobs: bool = False
    """What it samples at a temperature and what it trains are one distribution, the tempered one;
    False: logprobs, and so the importance ratio, are those of temperature 1."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model to create on the server. ``lora_rank`` None trains all weights.

    ``loss`` and ``adam`` are what it will be trained with; Twinkle wants to know beforehand.
    """

    base_model: str
    lora_rank: int | None
    lora_alpha: float
    seed: int
    loss: "LossSpec | None" = None
    adam: "AdamSpec | None" = None


@dataclass(frozen=True, slots=True)
class Datum:
    """One training example, already shifted by one.

    All arrays have length T = number of tokens of the trajectory - 1: position i predicts
    ``targets[i]``, the token after ``tokens[i]``. ``logprobs`` (the sampler's) and
    ``advantages`` are 0 where the target was not sampled.
    """

    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LossSpec:
    """``temperature`` is what the tokens were sampled with: a server whose sampled logprobs are
    those of the tempered distribution compares them with the trainer's of the same one."""

    name: str
    config: Mapping[str, float]
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class AdamSpec:
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float
    """0 switches clipping off."""


@dataclass(frozen=True, slots=True)
class ForwardBackwardResult:
    """``logprobs``: per datum, the trainer's logprobs of its targets, float32 [T]."""

    loss: float
    logprobs: Sequence[NDArray[np.float32]]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A training call, complete and not sent yet."""

    kind: str
    """``create_model``, ``forward_backward``, ``optim_step``, ``publish``, ``save_state``, …"""
    path: str
    body: bytes
    digest: str
    """Hex SHA-256 of the body; of what it says, where it may be written in more than one format."""
    model: str | None
    seq: int | None
    decode: Callable[[Any], T]
    content_type: str = "application/json"
    rewritten: "Callable[[], Call[T]] | None" = None
    """The same call in another format, for a server that says that it cannot read this one."""


Accepted = Callable[[str], None]
"""Called with the request id once the server has accepted a call, before its result is awaited."""


class TrainingService(Protocol):
    """A client of one training service, used from one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def session(self) -> str | None:
        """The server's id of the session that `connect` opened."""
        ...

    @property
    def strain(self) -> Strain:
        """How hard its calls go at this moment."""
        ...

    @property
    def closed_for(self) -> float:
        """Seconds for which no training call can be sent, as the server lets nobody send, or the
        one whose turn it is waits to be sent again; 0 where that is not so."""
        ...

    @property
    def gone(self) -> str | None:
        """How the server ended, and all it held in memory with it; None while nothing is known of
        an end."""
        ...

    def describe(self) -> str:
        """What kind of server this is and where, for people."""
        ...

    async def check(self) -> None:
        """Reach the server, check the key and the base model; open and change nothing.

        Raises:
            ServerError: with one line that says what was tried and what to change.
        """
        ...

    async def connect(self) -> None:
        """Reach the server, check the key and the base model, open a session, start its heartbeat.

        Raises:
            ServerError: with one line that says what was tried and what to change.
        """
        ...

    async def close(self) -> None:
        """End the heartbeat, the session and the connections.

        Ending the session is best effort, within two seconds: a server that has no such call, or
        does not answer, frees what is left when the heartbeat has been silent for long enough.
        Models are unloaded by their own call.
        """
        ...

    # Building training calls: pure, nothing is sent.

    def create_model(self, spec: ModelSpec) -> Call[str]: ...

    def forward_backward(
        self, model: str, seq: int, data: Sequence[Datum], loss: LossSpec
    ) -> Call[ForwardBackwardResult]: ...

    def optim_step(self, model: str, seq: int, adam: AdamSpec) -> Call[Mapping[str, float]]: ...

    def publish(self, model: str, seq: int, name: str) -> Call[str]:
        """Fix the model's weights as a snapshot; the value is the policy's URI."""
        ...

    def save_state(self, model: str, seq: int, name: str) -> Call[str]: ...

    def load_state(self, model: str, seq: int, uri: str) -> Call[None]: ...

    def unload_model(self, model: str) -> Call[None]:
        """Give the model back. Its execution is refused, or unknown, where the server has not
        taken it within `RETURN_SECONDS`."""
        ...

    def stop_waiting(self) -> None:
        """The run ends: from now on a training call that the server lets nobody send, or that is
        to be sent again as it surely was not executed, is refused in place of waited for. Calls
        that were sent go on. Idempotent."""
        ...

    async def execute(self, call: Call[T], accepted: Accepted) -> T:
        """Send a training call once and await its result.

        Raises:
            Refused: the server surely did not execute it.
            Unknown: it may have executed it.
        """
        ...

    # Finding out what became of training calls. Nothing is sent again.

    async def find_saved(self, call: Call[str]) -> str | None:
        """The URI of what a publish or save of state has made, looked up by its name where the
        server lists its checkpoints; None where it does not, or lists none of that name."""
        ...

    async def recall(self, kind: str, request: str, seconds: float) -> Recalled:
        """What became of a call that the server accepted as ``request``, asked for at most
        ``seconds``."""
        ...

    # Reading calls.

    async def base_policy(self) -> str:
        """The URI under which the untrained base model is sampled."""
        ...

    async def sample(self, request: SampleRequest) -> Sample: ...

    async def logprobs(self, policy: str, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logprobs of ``tokens`` under ``policy``, float32 [T]; the first one is NaN."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What a server says of one of its snapshots; None where it does not say."""

    uri: str
    time: str | None
    """When it was made, ISO 8601."""
    size: int | None
    """Bytes."""
    digest: str | None
    """Of the weights, with the name of the hash in front: ``sha256:…``."""


class CannotList(ServerError):  # noqa: N818 - what the server is not able to do
    """The server cannot say which snapshots it has."""


@runtime_checkable
class SnapshotStore(Protocol):
    """What a client has beside `TrainingService` where its server lists its snapshots and hands
    them out. Both may be called without being connected."""

    async def snapshot(self, uri: str) -> SnapshotFacts | None:
        """What the server says of a snapshot; None when it does not hold it.

        Raises:
            CannotList: the server cannot say.
            ServerError: it cannot be reached, or refuses.
        """
        ...

    async def download(self, uri: str, folder: Path) -> None:
        """Put a snapshot's weights as safetensors, and what is needed to load them, into
        ``folder``, which exists and is empty.

        Raises:
            ServerError: the server does not hand it out, or what arrived is not whole.
        """
        ...
