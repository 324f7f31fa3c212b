"""A training service on loopback whose policy is a script, with faults on request.

It speaks the Tinker API, in JSON or protobuf, over real HTTP, so a client under test meets real
sockets, real time-outs and real broken connections::

    def sampler(tokens, seed):              # what the policy answers to a context
        return [5, 7, 2], [-0.1, -0.2, -0.3]

    async with ScriptedPolicyServer(sampler=sampler) as server:
        server.url                          # "http://127.0.0.1:PORT"
        server.faults.add("optim_step", faults.drop_reply())
        server.faults.add("asample", faults.status(503, retry_after=0.1), times=3)
        ...
        server.requests("asample")          # every request that arrived, in order
        server.applied("optim_step")        # how many optimizer steps took effect
        server.applications()               # which calls took effect, in order
        server.models                       # models loaded now; [id].steps, [id].accumulated
        server.snapshots, server.states     # URIs → the step they hold
        server.drifts                       # samples that used other weights than asked for

The sampler gets the whole context and the request's seed, may be async, and returns tokens and
logprobs; ``max_tokens`` is enforced and the stop reason derived from the request's stop ids. To
return something a good server never would, return the sequence itself as a mapping, such as
``{"tokens": [1, 2], "logprobs": [-0.1], "stop_reason": "stop"}``.

Inside a synchronous test, ``with ScriptedPolicyServer(...) as server`` runs it on a thread of
its own.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from aiohttp import web

from mtrl_cli.testing import packed
from mtrl_cli.testing.faults import Fault, FaultPlan
from mtrl_cli.testing.hosted import Hosted
from mtrl_cli.testing.scripted_service import (
    TRAINING,
    Applied,
    Drift,
    Model,
    PromptLogprobs,
    Sampler,
    ScriptedService,
    ServiceError,
    Snapshots,
    Trainer,
)
from mtrl_cli.testing.server_thread import LoopbackServer
from mtrl_cli.wire.tinker_messages import CONTENT_TYPE as PROTOBUF

_FORMATS = {"application/json": "json", PROTOBUF: "protobuf"}

_DIRECT = (
    "get_server_capabilities",
    "create_session",
    "session_heartbeat",
    "create_sampling_session",
    "asample",
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived."""

    endpoint: str
    body: Mapping[str, Any]
    raw: bytes
    headers: Mapping[str, str]
    at: float
    """`time.monotonic` of the arrival."""


class ScriptedPolicyServer(LoopbackServer):
    """See the module's docstring.

    Args:
        sampler: (context tokens, seed) → (tokens, logprobs), or a raw sequence, or an awaitable.
        prompt_logprobs: (tokens, policy) → one logprob per token, the first None. By default
            those that came with the tokens when they were sampled, so that the server agrees with
            itself; -0.5 for others.
        trainer: datums as sent → the trainer's logprobs, one list per datum. By default those
            that were sent, so that trainer and sampler agree.
        models: names of the base models it offers.
        api_key: the key it insists on; None takes any.
        context: the window; a longer request gets a 400 that says so.
        dedupes: a training call with a known sequence id is not executed again.
        reports_weights: samples carry the URI of the weights.
        sample_seconds: how long one sample takes.
        training_seconds: how long one training call takes; they run one at a time.
        poll_seconds: how long a poll waits before it answers ``try_again``.
        inline: ``asample`` with ``Prefer: wait`` answers with the result, if that comes within
            ``poll_seconds``.
        snapshots: what a policy's name stands for after later training: ``immutable`` the
            weights that it was given for, ``newest_only`` the model's last snapshot, ``live``
            the model's weights of the moment. That is what samples are counted and reported with.
        formats: what it reads and writes: ``json`` or ``protobuf`` alone (of a pass in the other
            one it says 415, and it answers in its own whatever is asked for), or ``both``.
        hosted: what the hosted service does beyond the common protocol; None does none of it.
    """

    def __init__(
        self,
        *,
        sampler: Sampler = lambda tokens, seed: ([2], [-0.5]),
        prompt_logprobs: PromptLogprobs | None = None,
        trainer: Trainer | None = None,
        models: Sequence[str] = ("scripted",),
        api_key: str | None = None,
        context: int | None = None,
        dedupes: bool = True,
        reports_weights: bool = True,
        sample_seconds: float = 0.0,
        training_seconds: float = 0.0,
        poll_seconds: float = 5.0,
        inline: bool = False,
        snapshots: Snapshots = "immutable",
        formats: Literal["json", "protobuf", "both"] = "both",
        hosted: Hosted | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "sampler": sampler,
            "prompt_logprobs": prompt_logprobs,
            "trainer": trainer,
            "models": models,
            "context": context,
            "dedupes": dedupes,
            "reports_weights": reports_weights,
            "sample_seconds": sample_seconds,
            "training_seconds": training_seconds,
            "poll_seconds": poll_seconds,
            "snapshots": snapshots,
        }
        self._api_key = api_key
        self._inline = inline
        self._formats = formats
        self._hosted = hosted
        self._requests: list[Request] = []
        self._outliving: set[asyncio.Task[web.Response]] = set()
        self.faults = FaultPlan()
        self.url = ""

    # What a test looks at.

    def requests(self, endpoint: str | None = None) -> list[Request]:
        """The requests that arrived, in order; of one endpoint, or all."""
        return [r for r in self._requests if endpoint is None or r.endpoint == endpoint]

    def applied(self, kind: str | None = None) -> int:
        """How many training calls took effect; of one endpoint, or all."""
        return sum(kind is None or call.kind == kind for call in self._service.applied)

    def applications(self) -> list[Applied]:
        """The training calls that took effect, in order."""
        return list(self._service.applied)

    @property
    def models(self) -> Mapping[str, Model]:
        return self._service.models

    @property
    def snapshots(self) -> Mapping[str, int]:
        return self._service.snapshots

    @property
    def states(self) -> Mapping[str, int]:
        return self._service.states

    @property
    def samples(self) -> int:
        """How many turns were sampled."""
        return self._service.samples

    @property
    def drifts(self) -> Sequence[Drift]:
        """Samples that used other weights than those of the policy that they asked for."""
        return self._service.drifts

    @property
    def heartbeats(self) -> int:
        return self._service.heartbeats.total()

    def promised(self, request: Any) -> str | None:
        """The endpoint that answered with this request id."""
        return self._service.promised.get(str(request))

    # Its life.

    async def start(self, port: int = 0) -> None:
        """Listen. A fixed ``port`` lets a test stop a server and start it again in its place."""
        if not hasattr(self, "_service"):
            self._service = ScriptedService(**self._options)
        self._closing = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/api/v1/{endpoint:.+}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True
        )
        await self._runner.setup()
        self._loop = asyncio.get_running_loop()
        await self._listen(port)

    async def _listen(self, port: int) -> None:
        assert self._runner.server is not None
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._server = await self._loop.create_server(self._runner.server, sock=self._listener)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def refuse(self, seconds: float) -> None:
        """Refuse new connections for so many seconds, from whatever thread but its own."""

        async def close() -> None:
            port = self._listener.getsockname()[1]
            await self._accept_no_more()
            self._loop.call_later(seconds, lambda: self._loop.create_task(self._listen(port)))

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()

    async def _accept_no_more(self) -> None:
        """What was just accepted becomes a connection before the listener goes: it would stay open,
        and nobody would read from it."""
        asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(5):
            await asyncio.sleep(0)
        self._server.close()

    async def stop(self) -> None:
        """Close every connection. What the service knows stays readable."""
        self._closing.set()
        for work in self._outliving:
            work.cancel()
        await asyncio.gather(*self._outliving, return_exceptions=True)
        await self._accept_no_more()
        await self._runner.cleanup()
        await self._service.close()

    # One request.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        endpoint = request.match_info["endpoint"]
        raw = await request.read()
        sent = request.content_type
        body = packed.request_body(raw) if sent == PROTOBUF else json.loads(raw or b"{}")
        self._requests.append(Request(endpoint, body, raw, request.headers, monotonic()))
        shown = request.headers.get("X-API-Key")
        if self._hosted is not None:
            challenge = self._hosted.wants(endpoint, shown, self._api_key)
            if challenge is not None:
                return _json(401, {"detail": "Invalid JWT"}, challenge)
        elif self._api_key is not None and shown != self._api_key:
            return _json(401, {"detail": "Invalid API key"})
        if endpoint == "forward_backward" and self._formats not in ("both", _FORMATS[sent]):
            return _json(415, {"detail": f"Unsupported media type {sent}"})
        fault = self.faults.next(endpoint, body)
        if fault is not None and fault.kind == "outlive":
            work = asyncio.ensure_future(self._outlive(endpoint, body, fault))
            self._outliving.add(work)
            work.add_done_callback(self._outliving.discard)
            return await asyncio.shield(work)
        if fault is not None and fault.gate is not None and not fault.executes:
            await fault.gate.passed()
            fault = None
        if fault is not None and not fault.executes and fault.kind != "fail":
            return await self._misbehave(request, fault, _json(200, {}))
        try:
            answer = await self._execute(endpoint, body, fault)
            if self._inline and endpoint == "asample" and "Prefer" in request.headers:
                result = await self._service.retrieve_future(answer)
                answer = answer if result.get("type") == "try_again" else {**result, **answer}
            reply = self._reply(request, answer)
        except ServiceError as error:
            reply = _json(error.status, {"detail": error.detail})
        if fault is None or fault.kind == "fail":
            return reply
        return await self._misbehave(request, fault, reply)

    async def _outlive(self, endpoint: str, body: Mapping[str, Any], fault: Fault) -> web.Response:
        assert fault.gate is not None
        await fault.gate.passed()
        try:
            return _json(200, await self._execute(endpoint, body, None))
        except ServiceError as error:
            return _json(error.status, {"detail": error.detail})

    def _reply(self, request: web.Request, answer: Mapping[str, Any]) -> web.Response:
        wanted = self._formats == "protobuf" or (
            self._formats == "both" and PROTOBUF in request.headers["Accept"]
        )
        body = packed.result_body(answer) if wanted else None
        if body is None:
            return _json(200, answer)
        return web.Response(body=body, content_type=PROTOBUF)

    async def _execute(self, endpoint: str, body: Mapping[str, Any], fault: Fault | None) -> Any:
        if endpoint in TRAINING:
            if fault is not None and fault.kind == "fail":
                return self._service.train(
                    endpoint, body, failure=fault.error, applied=fault.executes
                )
            return self._service.train(endpoint, body)
        if endpoint == "retrieve_future":
            return await self._service.retrieve_future(body)
        if endpoint.startswith("training_runs/"):
            return self._service.checkpoints(endpoint)
        if endpoint == "healthz":
            return {"status": "ok"}
        only = None if self._hosted is None else self._hosted.answer(endpoint, body)
        if only is not None:
            return only
        if endpoint in _DIRECT:
            return getattr(self._service, endpoint)(body)
        raise ServiceError(404, "Not Found")

    async def _misbehave(
        self, request: web.Request, fault: Fault, reply: web.Response
    ) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if fault.gate is not None:
            await fault.gate.passed()
            return reply
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
            return reply
        if fault.kind in ("status", "body"):
            headers = {"Content-Type": "application/json", **fault.headers}
            return web.Response(status=fault.status, body=fault.body, headers=headers)
        if fault.kind == "hang":
            await self._closing.wait()
            return reply
        if fault.kind == "drop":
            transport.close()
            return reply
        whole = _wire(reply)
        if fault.kind == "cut":
            transport.write(whole[: whole.index(b"\r\n\r\n") + 4 + fault.status])
            transport.close()
            return reply
        transport.write(whole)  # and a second time by aiohttp
        return reply


def _json(status: int, body: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        body=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
    )


def _wire(reply: web.Response) -> bytes:
    body = reply.body
    assert isinstance(body, bytes)
    head = f"HTTP/1.1 {reply.status} OK\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
