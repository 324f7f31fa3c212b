"""Training calls: one at a time, in order, each in the ledger before it is sent.

    intent → accepted (request id) → done | refused | unknown

`Operations` owns the server-side model of one attempt of a run and its sequence counter. Each
call is built completely, its intent and digest are written and fsynced, then it is executed
once. A sequence number is used up by a call that was built, in the order in which calls are
sent: one that is cancelled or turned down before that leaves no gap. ``refused`` means that a
call surely was not executed, ``unknown`` that it may have been; both end the run's attempt here,
and nothing is sent again by itself.

A publish or a save of state whose reply is lost, or that is given up after a stop, is looked up by
its name in the server's list of checkpoints, where the server has one, before it counts as unknown.

A call in flight is awaited also when the caller is cancelled, for `PATIENCE` seconds more: its
effect cannot be taken back, so its outcome should be known. What has no outcome by then is given
up as ``unknown``, or a server that hangs could not be left. A call that only waits to be sent, as
its server lets nobody send, is not waited for: it is ``refused``.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.lending import Lender
from mtrl_cli.rollout.settle import finish
from mtrl_cli.runs.ledger import Ledger
from mtrl_cli.servers.errors import Refused, Unknown
from mtrl_cli.servers.interface import (
    RETURN_SECONDS,
    AdamSpec,
    Call,
    Datum,
    ForwardBackwardResult,
    LossSpec,
    ModelSpec,
    TrainingService,
)

T = TypeVar("T")

PATIENCE = 8.0
"""Seconds that a call in flight may go on after a stop."""

_SLACK = 2.0

_SAVES = ("publish", "save_state")
_TELLING = ("grad", "norm", "loss")
"""In the names of figures that a usable optimizer step has finite."""
_LOOKS, _LAST_LOOK = (0.0, 1.0, 2.0), (0.0,)
"""Seconds before each look at the server's checkpoints; the second for a call that is given up."""


class TrainingError(MtrlError):
    """What was to be sent, or what came back, cannot be trained with."""


class Operations:
    """The training calls of one attempt, on one server-side model.

    Args:
        taken: URIs that stand for policies of the run already.
        tell: hears, in one line, how a call failed that nobody waited for any more.
    """

    def __init__(
        self,
        service: TrainingService,
        ledger: Ledger,
        attempt: int,
        vocab: int,
        *,
        taken: Iterable[str] = (),
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._service = service
        self._ledger = ledger
        self._attempt = attempt
        self._vocab = vocab
        self._taken = set(taken)
        self._tell = tell
        self._one_at_a_time = asyncio.Lock()
        self._model: str | None = None
        self._seq = 0

    @property
    def model(self) -> str:
        """The server's id of the model."""
        if self._model is None:
            raise RuntimeError("create_model comes first")
        return self._model

    async def create_model(self, spec: ModelSpec) -> None:
        """Create the server-side model; see `server_model` for its life as a borrow."""
        self._model = await self._run(lambda _: self._service.create_model(spec), patience=0)

    async def forward_backward(
        self, data: Sequence[Datum], loss: LossSpec
    ) -> ForwardBackwardResult:
        """Accumulate the gradients of ``data``.

        Raises:
            TrainingError: an array breaks a rule (nothing was sent), or the result is not finite.
        """

        def build(seq: int) -> Call[ForwardBackwardResult]:
            check_data(data, self._vocab)
            return self._service.forward_backward(self.model, seq, data, loss)

        # A batch is megabytes of text: written on the event loop it would hold up every turn.
        result = await self._run(build, aside=True)
        _check_result(result, data)
        return result

    async def optim_step(self, adam: AdamSpec) -> Mapping[str, float]:
        """Step the optimizer on what was accumulated, and clear it.

        Raises:
            TrainingError: a norm or a loss that the server tells of the step is not finite.
        """
        figures = await self._run(lambda seq: self._service.optim_step(self.model, seq, adam))
        _check_figures(figures)
        return figures

    async def publish(self, name: str) -> str:
        """Fix the current weights as an immutable snapshot and return its URI.

        Raises:
            TrainingError: the URI stands for another policy of the run already.
        """
        uri = await self._run(lambda seq: self._service.publish(self.model, seq, name))
        if uri in self._taken:
            raise TrainingError(
                f"the server calls the new snapshot {name} {uri}, which stands for an older policy "
                "of this run: which weights it samples cannot be told; what is committed stands"
            )
        self._taken.add(uri)
        return uri

    async def save_state(self, name: str) -> str:
        """Save weights and optimizer state for a resume, and return the URI."""
        return await self._run(lambda seq: self._service.save_state(self.model, seq, name))

    async def load_state(self, uri: str) -> None:
        """Load weights and optimizer state into the model; servers want it before other calls."""
        await self._run(lambda seq: self._service.load_state(self.model, seq, uri))

    async def unload_model(self) -> None:
        """Return the server-side model. Idempotent; does nothing where none is held, or where it
        has ended with its server."""
        model = self._model
        if model is None:
            return
        if self._service.gone is None:
            await self._run(lambda _: self._service.unload_model(model), patience=0)
        self._model = None

    def server_model(self, spec: ModelSpec) -> Lender[str]:
        """Lends the server-side model: created when it is borrowed, unloaded when returned."""

        async def make(key: str) -> str:
            await self.create_model(spec)
            return self.model

        async def give_back(model: str) -> None:
            await self.unload_model()

        return Lender(
            "server_model",
            make,
            give_back,
            external=True,
            place=self._service.describe(),
            identify=lambda model: model,
            remedy=lambda model: "the server frees it when its session expires",
            perhaps_made=lambda error: (
                self._service.gone is None and isinstance(error, Unknown | asyncio.CancelledError)
            ),
            unwanted=lambda key: self._service.stop_waiting(),
            patience=RETURN_SECONDS + _SLACK,  # one that is not taken says so by itself
        )

    async def _run(
        self, build: Callable[[int], Call[T]], *, aside: bool = False, patience: float = PATIENCE
    ) -> T:
        """Build the call of the next sequence number and execute it.

        Args:
            aside: build it on a thread.
            patience: 0 is for calls of a borrow: its scope has been patient already.
        """
        async with self._one_at_a_time:
            seq = self._seq + 1
            call = await asyncio.to_thread(build, seq) if aside else build(seq)
            if call.seq is not None:
                self._seq = seq
            work = self._execute(call)
            return await finish(work, patience, self._unheard, self._service.stop_waiting)

    def _unheard(self, error: BaseException) -> None:
        self._tell(f"after the stop: {error or type(error).__name__}")

    async def _execute(self, call: Call[T]) -> T:
        key = f"a{self._attempt}/{call.kind}" + ("" if call.seq is None else f"/{call.seq}")
        self._ledger.call(
            key, "intent", kind=call.kind, model=call.model, seq=call.seq, digest=call.digest
        )

        def accepted(request_id: str) -> None:
            self._ledger.call(key, "accepted", request=request_id)

        try:
            value, found = await self._answered(call, accepted)
        except Refused as error:
            self._ledger.call(key, "refused", reason=str(error))
            raise
        except asyncio.CancelledError:
            reason = "given up after a stop without an answer; it may have been executed"
            self._ledger.call(key, "unknown", reason=reason)
            raise
        except Exception as error:
            # Also a mistake of our own: the call may have gone out before it was made.
            self._ledger.call(key, "unknown", reason=str(error) or type(error).__name__)
            raise
        made: dict[str, Any] = {"result": value} if isinstance(value, str) else {}
        self._ledger.call(key, "done", **made, **({"found": True} if found else {}))
        return value

    async def _answered(self, call: Call[T], accepted: Callable[[str], None]) -> tuple[T, bool]:
        """The call's value, and whether it had to be looked up."""
        try:
            return await self._service.execute(call, accepted), False
        except (Unknown, asyncio.CancelledError) as error:
            if call.kind not in _SAVES or (isinstance(error, Unknown) and error.failed):
                raise
            looks = _LOOKS if isinstance(error, Unknown) else _LAST_LOOK
            saved = await self._looked_up(cast(Call[str], call), looks)
            if saved is None:
                raise
            return cast(T, saved), True

    async def _looked_up(self, call: Call[str], looks: Sequence[float]) -> str | None:
        """What a save has made; asked a few times, as it may be under way."""
        for pause in looks:
            await asyncio.sleep(pause)
            if (saved := await self._service.find_saved(call)) is not None:
                return saved
        return None


def check_data(data: Sequence[Datum], vocab: int) -> None:
    """Check every array of a training call before it is sent.

    Raises:
        TrainingError: naming the datum and what is wrong with it.
    """
    if not data:
        raise TrainingError("nothing to train: the batch is empty")
    for index, datum in enumerate(data):
        flaw = _datum_flaw(datum, vocab)
        if flaw is not None:
            raise TrainingError(f"datum {index}: {flaw}; nothing was sent")


def _datum_flaw(datum: Datum, vocab: int) -> str | None:
    lengths = {
        len(array) for array in (datum.tokens, datum.targets, datum.logprobs, datum.advantages)
    }
    if len(lengths) != 1 or 0 in lengths:
        return f"its arrays have the lengths {sorted(lengths)}, but must be of one length ≥ 1"
    for name, ids in (("tokens", datum.tokens), ("targets", datum.targets)):
        if ids.min() < 0 or ids.max() >= vocab:
            return f"{name} holds ids from {ids.min()} to {ids.max()}, outside 0 to {vocab - 1}"
    for name, values in (("logprobs", datum.logprobs), ("advantages", datum.advantages)):
        if not np.isfinite(values).all():
            return f"{name} holds a value that is not finite"
    if not datum.advantages.any():
        return "no token has an advantage"
    return None


def _check_result(result: ForwardBackwardResult, data: Sequence[Datum]) -> None:
    if not math.isfinite(result.loss):
        raise TrainingError(f"the server's loss is {result.loss}: the gradients are not usable")
    if len(result.logprobs) != len(data):
        raise TrainingError(f"sent {len(data)} datums, got logprobs of {len(result.logprobs)}")
    for index, (logprobs, datum) in enumerate(zip(result.logprobs, data, strict=True)):
        if len(logprobs) != len(datum.targets):
            raise TrainingError(
                f"datum {index} has {len(datum.targets)} targets, the server returned "
                f"{len(logprobs)} logprobs"
            )
        if not np.isfinite(logprobs[datum.advantages != 0]).all():
            raise TrainingError(
                f"datum {index}: the server's logprob of a trained token is not finite: the "
                "gradients are not usable"
            )


def _check_figures(figures: Mapping[str, float]) -> None:
    """A step with a gradient that is no number has made weights that are none; a figure that the
    server has merely not measured says nothing."""
    for name, value in figures.items():
        if not math.isfinite(value) and any(word in name.lower() for word in _TELLING):
            raise TrainingError(
                f"the server's {name} of the optimizer step is {value}: its weights are not usable "
                "and the step is not committed; what is committed stands"
            )
