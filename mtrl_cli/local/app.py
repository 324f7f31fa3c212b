"""The HTTP side: paths to calls, answers to bodies, reasons to statuses.

aiohttp's low-level server speaks HTTP; a request costs one dictionary look-up here and no router,
middleware or signal. Only what waits (a long poll, the disk) is a coroutine. Every body in and out
passes through the codec. A refused request is `{"detail": reason}` with its status; nothing it
asked for has happened.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import sys
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import unquote

from aiohttp import hdrs, web

from mtrl_cli.local import codec, packed
from mtrl_cli.local.answers import Answer
from mtrl_cli.local.calls import CreateByLoadCall
from mtrl_cli.local.checkpoints import CheckpointRoutes
from mtrl_cli.local.errors import RefusedError
from mtrl_cli.local.service import Service
from mtrl_cli.local.validate import text

PREFIX = "/api/v1/"
MAX_BODY = 64 * 2**20
KEEP_ALIVE = 3600.0  # closing an idle connection can lose the request that is on its way
Body = dict[str, Any]
Reply = dict[str, Any] | bytes | Answer
Eventual = Reply | Coroutine[None, None, Reply]
Post = Callable[[Body, bytes], Eventual]
Get = Callable[..., Eventual]

_HEADERS: dict[str, str] = {hdrs.CONTENT_TYPE: codec.CONTENT_TYPE}
_BUSY = {**_HEADERS, hdrs.RETRY_AFTER: "1"}
_WAITED = {**_HEADERS, "Preference-Applied": "wait"}
_ASAMPLE = PREFIX + "asample"
_PASS = PREFIX + "forward_backward"
_WAIT = re.compile(r"""(?:^|,)\s*wait\s*=\s*"?(\d{1,9})"?\s*(?=[,;]|$)""", re.IGNORECASE)
_TOO_LARGE = f"body: larger than {MAX_BODY} bytes; send fewer data in one request"


class App:
    def __init__(self, service: Service, api_key: str | None) -> None:
        self._service = service
        self._checkpoints = CheckpointRoutes(service)
        self._key = None if api_key is None else api_key.encode()
        self._posts: dict[str, Post] = {
            PREFIX + name: handler for name, handler in self._table().items()
        }
        self._gets: list[tuple[re.Pattern[str], Get]] = [
            (re.compile(pattern), handler) for pattern, handler in self._get_table()
        ]

    def server(self) -> web.Server:
        loop = asyncio.get_running_loop()

        def request(*parts: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = parts
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY
            )

        # `handle` logs what goes wrong in it; what is left are other people's torn requests.
        quiet = logging.getLogger("mtrl_cli.local.http")
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        return web.Server(
            self.handle,
            request_factory=request,
            access_log=None,
            logger=quiet,
            keepalive_timeout=KEEP_ALIVE,
        )

    async def handle(self, request: web.BaseRequest) -> web.Response:
        try:
            target = request.raw_path
            if self._key is not None and not self._open_to_all(request.method, target):
                self._check_key(request)
            if request.method == "POST":
                handler = self._post(target)
                raw = await _body(request)
                if target == _PASS and _is_packed(request):
                    return _respond(self._train_packed(raw), request)
                if target == _ASAMPLE and (seconds := _preferred_wait(request)) > 0:
                    return await self._sample_and_wait(codec.parse(raw), seconds)
                reply = handler(codec.parse(raw), raw)
            elif (file := await self._checkpoints.file(request)) is not None:
                return file
            else:
                reply = self._get(request.method, target)
            if not isinstance(reply, bytes | dict | Answer):
                reply = await reply
            return _respond(reply, request)
        except ConnectionError:  # the client has gone in the middle of its request
            raise
        except Exception as error:
            return _unhappy(error)

    def _open_to_all(self, method: str, target: str) -> bool:
        return target == PREFIX + "healthz" or self._checkpoints.is_download(method, target)

    def _check_key(self, request: web.BaseRequest) -> None:
        given = request.headers.get("X-API-Key", "").encode("utf-8", "surrogateescape")
        if self._key is not None and not hmac.compare_digest(given, self._key):
            raise RefusedError(401, "X-API-Key: missing or not the key of this server")

    def _post(self, target: str) -> Post:
        handler = self._posts.get(target)
        if handler is None:
            match = re.fullmatch(PREFIX + r"sessions/([^/?]+)/finish", target)
            if match is None:
                raise RefusedError(404, f"POST {target[:200]}: no such endpoint")
            handler = partial(self._finish_session, match[1])
        return handler

    def _get(self, method: str, target: str) -> Eventual:
        path, _, query = target.partition("?")
        for pattern, handler in self._gets:
            match = pattern.fullmatch(f"{method} {path}")
            if match is not None:
                return handler(*(unquote(group) for group in match.groups()), query=query)
        raise RefusedError(404, f"{method} {path[:200]}: no such endpoint")

    def _table(self) -> dict[str, Post]:
        return {
            "retrieve_future": self._retrieve,
            "asample": self._sample,
            "forward_backward": partial(self._train, True),
            "forward": partial(self._train, False),
            "optim_step": self._optim,
            "save_weights": partial(self._save, False),
            "save_weights_for_sampler": partial(self._save, True),
            "load_weights": self._load,
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "create_model": self._create_model,
            "unload_model": self._unload,
            "get_info": self._info,
            "create_sampling_session": self._sampling_session,
            "weights_info": self._checkpoints.weights_info,
            "client/config": self._client_config,
            "client/dynamic_config": self._dynamic_config,
            "cancel_future": self._cancel,
            "telemetry": self._telemetry,
        }

    def _get_table(self) -> list[tuple[str, Get]]:
        return [
            (r"GET /api/v1/healthz", self._healthz),
            (r"GET /api/v1/get_server_capabilities", self._capabilities),
            (r"GET /api/v1/debug/counters", self._counters),
            (r"GET /api/v1/samplers/([^/]+)", self._sampler),
            (r"GET /api/v1/sessions", self._sessions),
            (r"GET /api/v1/sessions/([^/]+)", self._session),
            *self._checkpoints.table(),
        ]

    # --- promises

    def _retrieve(self, body: Body, raw: bytes) -> Eventual:
        request_id = text(body, "request_id")
        answer = self._service.promises.peek(request_id)
        return self._wait(request_id) if answer is None else answer

    async def _wait(self, request_id: str) -> Reply:
        service = self._service
        answer = await service.promises.retrieve(request_id, service.settings.patience)
        if answer is None:
            return {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        return answer

    def _sample(self, body: Body, raw: bytes) -> Eventual:
        call = codec.sample(body)
        request_id = self._service.sampling.submit(call)
        if isinstance(request_id, str):
            return _promise(request_id, call.num_samples)
        return _promised(request_id, call.num_samples)

    async def _sample_and_wait(self, body: Body, seconds: float) -> web.Response:
        """One reply in place of two: the result with its request id, if it comes in time."""
        service, call = self._service, codec.sample(body)
        request_id = service.sampling.submit(call)
        if not isinstance(request_id, str):
            request_id = await request_id
        patience = min(seconds, service.settings.patience)
        answer = await service.promises.retrieve(request_id, patience)
        if answer is None:
            return web.Response(body=_promise(request_id, call.num_samples), headers=_HEADERS)
        merged = b'{"request_id":"%b",%b' % (request_id.encode(), answer.body(False)[0][1:])
        return web.Response(body=merged, headers=_WAITED)

    def _train(self, backward: bool, body: Body, raw: bytes) -> Reply:
        digest = _digest("forward_backward" if backward else "forward", raw)
        return _promise(self._service.train(codec.train(body, backward), digest))

    def _train_packed(self, raw: bytes) -> Reply:
        return _promise(self._service.train(packed.train(raw), _digest("packed", raw)))

    def _optim(self, body: Body, raw: bytes) -> Reply:
        call = codec.optim_step(body)
        return _promise(self._service.optim_step(call, _digest("optim_step", raw)))

    async def _save(self, sampler: bool, body: Body, raw: bytes) -> Reply:
        digest = _digest("save_weights_for_sampler" if sampler else "save_weights", raw)
        return _promise(await self._service.save(codec.save(body, sampler), digest))

    async def _load(self, body: Body, raw: bytes) -> Reply:
        call, digest = codec.load_weights(body), _digest("load_weights", raw)
        if isinstance(call, CreateByLoadCall):
            return await self._service.create_by_load(call, digest)
        return _promise(await self._service.load(call, digest))

    def _create_model(self, body: Body, raw: bytes) -> Reply:
        return self._service.create_model(codec.create_model(body), _digest("create_model", raw))

    def _unload(self, body: Body, raw: bytes) -> Reply:
        model_id = text(body, "model_id")
        request_id = self._service.unload_model(model_id)
        return {"request_id": request_id, "model_id": model_id}

    # --- answered at once

    def _create_session(self, body: Body, raw: bytes) -> Reply:
        session = self._service.create_session()
        return {
            "type": "create_session",
            "session_id": session.id,
            "info_message": None,
            "warning_message": None,
            "error_message": None,
        }

    def _heartbeat(self, body: Body, raw: bytes) -> Reply:
        self._service.sessions.touch(text(body, "session_id"))
        return {"type": "session_heartbeat"}

    def _finish_session(self, session_id: str, body: Body, raw: bytes) -> Reply:
        self._service.sessions.touch(session_id)
        self._service.end_session(session_id, "it was finished")
        return {"session_id": session_id, "status": "finished"}

    def _info(self, body: Body, raw: bytes) -> Reply:
        model = self._service.model(text(body, "model_id"))
        rank = None if model.lora is None else model.lora.rank
        return {
            "type": "get_info",
            "model_id": model.id,
            "model_name": model.base_model,
            "is_lora": model.lora is not None,
            "lora_rank": rank,
            "status": "created",
            "last_seq_id": model.last_seq,
            "model_data": {
                "base_model": model.base_model,
                "model_name": model.base_model,
                "tokenizer_id": model.base_model,
                "arch": "mtrl-tiny",
                "lora_config": None if rank is None else {"rank": rank},
                "max_context_length": self._service.shape.context,
            },
        }

    async def _sampling_session(self, body: Body, raw: bytes) -> Reply:
        call = codec.sampling_session(body)
        return await self._service.sampling.open(call, _digest("create_sampling_session", raw))

    def _client_config(self, body: Body, raw: bytes) -> Reply:
        return {"pjwt_auth_enabled": False}

    def _dynamic_config(self, body: Body, raw: bytes) -> Reply:
        return {"sample_cancel_enabled": True}

    def _cancel(self, body: Body, raw: bytes) -> Reply:
        request_id = text(body, "request_id")
        self._service.promises.peek(request_id)  # an unknown id is refused
        stopped = self._service.sampling.cancel(request_id)
        return {"request_id": request_id, "cancelled": stopped}

    def _telemetry(self, body: Body, raw: bytes) -> Reply:
        return {"status": "accepted"}

    # --- GET and DELETE

    def _healthz(self, query: str) -> Reply:
        return {"status": "ok"}

    def _capabilities(self, query: str) -> Reply:
        return {
            "supported_models": [
                {
                    "model_name": self._service.settings.base_model,
                    "max_context_length": self._service.shape.context,
                    "vocab_size": self._service.shape.vocab,
                }
            ]
        }

    def _counters(self, query: str) -> Reply:
        return self._service.counters()

    def _sampler(self, sampler_id: str, query: str) -> Reply:
        sampler = self._service.sampling.find(sampler_id)
        path = sampler.snapshot.uri if sampler.snapshot.weights_id != "base" else None
        return {
            "sampler_id": sampler.id,
            "base_model": sampler.snapshot.base_model,
            "model_path": path,
        }

    def _sessions(self, query: str) -> Reply:
        return {"sessions": self._service.sessions.ids()}

    def _session(self, session_id: str, query: str) -> Reply:
        session = self._service.sessions.touch(session_id)
        return {"training_run_ids": sorted(session.models), "sampler_ids": sorted(session.samplers)}


async def _body(request: web.BaseRequest) -> bytes:
    headers = request.headers
    if not headers.get(hdrs.CONTENT_TYPE, "").startswith(codec.CONTENT_TYPE) and not (
        request.raw_path == _PASS and _is_packed(request)
    ):
        raise RefusedError(415, f"Content-Type: expected {codec.CONTENT_TYPE}")
    if (request.content_length or 0) > MAX_BODY:
        raise RefusedError(413, _TOO_LARGE)
    if hdrs.EXPECT in headers:  # the low-level server leaves this to us
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RefusedError(413, _TOO_LARGE) from None
    except web.RequestPayloadError as error:
        raise RefusedError(400, f"body: cannot be read ({error!s:.200})") from None


def _is_packed(request: web.BaseRequest) -> bool:
    return request.headers.get(hdrs.CONTENT_TYPE, "").startswith(packed.CONTENT_TYPE)


def _respond(reply: Reply, request: web.BaseRequest) -> web.Response:
    if isinstance(reply, Answer):
        body, kind = reply.body(packed.CONTENT_TYPE in request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: kind})
    body = reply if isinstance(reply, bytes) else codec.plain(reply)
    return web.Response(body=body, headers=_HEADERS)


def _preferred_wait(request: web.BaseRequest) -> float:
    """Seconds of RFC 7240's ``Prefer: wait=N``; a preference that is not understood is none."""
    match = _WAIT.search(",".join(request.headers.getall("Prefer", ())))
    return 0.0 if match is None else float(match[1])


def _unhappy(error: Exception) -> web.Response:
    if isinstance(error, RefusedError):
        status, reason = error.status, error.reason
    else:
        sys.stderr.write("".join(traceback.format_exception(error)))
        status, reason = 500, f"{type(error).__name__} in the server: {error}"[:500]
    headers = _BUSY if status == 429 else _HEADERS
    return web.Response(status=status, body=codec.plain({"detail": reason}), headers=headers)


async def _promised(request_id: Coroutine[None, None, str], samples: int) -> Reply:
    return _promise(await request_id, samples)


def _promise(request_id: str, samples: int = 0) -> bytes:
    """``samples``: of how many sequences the result will be; each has an id of its own."""
    ids = ",".join([f'"{request_id}/{index}"' for index in range(samples)])
    sequences = f',"sample_sequence_ids":[{ids}]' if samples else ""
    return (
        f'{{"request_id":"{request_id}","future_id":"{request_id}","status":"pending"{sequences}}}'
    ).encode()


def _digest(call: str, raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=16, key=call.encode()).digest()
