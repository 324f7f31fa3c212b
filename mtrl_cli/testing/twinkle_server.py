"""A Twinkle server on loopback whose policy is a script, with faults on request.

It answers the routes of twinkle-kit 0.5.1 in the shapes that were captured from it, those of the
real backends or those of the mock ones::

    def sampler(tokens, index):             # what the policy answers to a context
        return [5, 7, 2], [-0.1, -0.2, -0.3]

    async with ScriptedTwinkleServer(sampler=sampler) as server:
        server.url                                  # "http://127.0.0.1:PORT"
        server.faults.add("model/scripted/twinkle/save", faults.drop_reply())
        ...
        server.requests("sampler/scripted/twinkle/sample")   # as they arrived, with headers
        server.applied("forward_backward")                   # which took effect
        server.models, server.slots                          # adapters, and the slots they hold
        server.drifts                                        # samples that used other weights

The sampler gets the context and the input's place in the call. A ``faults.fail(error)`` is a 500
whose traceback ends in that error.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from mtrl_cli.testing.faults import Fault
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.testing.scripted_service import Sampler, ServiceError
from mtrl_cli.testing.twinkle_script import (
    Caller,
    Shape,
    TwinkleScript,
    TwinkleTrainer,
    failure,
)

_caller: ContextVar[Caller] = ContextVar("caller")


class ScriptedTwinkleServer(ScriptedPolicyServer):
    """See the module's docstring.

    Args:
        sampler: (context tokens, place in the call) → (tokens, logprobs), or a raw sequence.
        trainer: a ``forward_backward`` body → the trainer's logprob of each trained label. By
            default those that were sent, so that trainer and sampler agree.
        shape: whose shapes it answers in.
        echo: what it makes of the context that it continues; a good server changes nothing.
        base_model: the one it offers.
        max_loras: its slots.
        max_input_tokens: of one request.
        sample_seconds: how long a sample call takes; one at a time for each token.
        training_seconds: how long a training call takes; one at a time for each session.
        clock: seconds since the epoch; snapshots are named by it.
    """

    def __init__(
        self,
        *,
        sampler: Sampler = lambda tokens, index: ([2], [-0.5]),
        trainer: TwinkleTrainer | None = None,
        shape: Shape = "real",
        echo: Callable[[list[int]], list[int]] = list,
        base_model: str = "scripted",
        max_loras: int = 5,
        max_input_tokens: int = 16_000,
        sample_seconds: float = 0.0,
        training_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._base_model = base_model
        self._script = TwinkleScript(
            base_model=base_model,
            sampler=sampler,
            trainer=trainer,
            shape=shape,
            echo=echo,
            max_loras=max_loras,
            max_input_tokens=max_input_tokens,
            sample_seconds=sample_seconds,
            training_seconds=training_seconds,
            clock=clock,
        )
        self._service: Any = self._script

    @property
    def slots(self) -> set[str]:
        """The adapters whose slots are taken, on the server's own count."""
        return self._script.slots

    @property
    def base_samples(self) -> int:
        """Turns that were sampled without an adapter."""
        return self._script.base_samples

    @property
    def sampled_at_once(self) -> int:
        """The most sample calls of one token that were there at the same time."""
        return self._script.sampled_at_once

    def expire(self, model: str) -> None:
        """Let an adapter's time be over."""
        self._script.expire(model)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        token = headers.get("Twinkle-Authorization", headers.get("Authorization", ""))
        _caller.set(
            Caller(
                token.removeprefix("Bearer "),
                headers.get("serve_multiplexed_model_id", ""),
                headers.get("X-Twinkle-Session-Id", ""),
            )
        )
        return await super()._handle(request)

    async def _execute(self, endpoint: str, body: Mapping[str, Any], fault: Fault | None) -> Any:
        if fault is not None and fault.kind == "fail":
            if fault.executes:
                await self._answer(endpoint, body)
            raise failure(str(fault.error["detail"]))
        return await self._answer(endpoint, body)

    async def _answer(self, endpoint: str, body: Mapping[str, Any]) -> Any:
        script, caller = self._script, _caller.get()
        if endpoint == "retrieve_future":
            return await script.retrieve_future(body)
        if endpoint == f"model/{self._base_model}/tinker/unload_model":
            return script.unload(body)
        app, _, call = endpoint.rpartition("twinkle/")
        if app == "":
            return script.gateway(call, body)
        if app == f"model/{self._base_model}/":
            return await script.model(call, body, caller)
        if app == f"sampler/{self._base_model}/":
            return await script.sample(call, body, caller)
        raise ServiceError(404, "Not Found")
