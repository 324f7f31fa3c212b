"""The emulator's HTTP server: routes, faults, and the life of the whole."""

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from mtrl_cli.testing.e2b_emulator.envd import Envd
from mtrl_cli.testing.e2b_emulator.sandboxes import Refusal, Sandbox, Sandboxes
from mtrl_cli.testing.e2b_emulator.wire import break_connection, gone, rest_error, unframed
from mtrl_cli.testing.faults import Fault, FaultPlan
from mtrl_cli.testing.server_thread import LoopbackServer

_RPC = {"Start": "start", "Connect": "start", "SendInput": "send_input"}
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Seen:
    """One operation as it arrived."""

    operation: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    at: float
    """`time.monotonic`."""


class E2BEmulator(LoopbackServer):
    """See the package's docstring.

    Args:
        api_key: the key it insists on; None takes any that is not empty.
        at_once, per_second, longest: a plan's limits; see `Sandboxes`.
        remembers: keep every operation for `seen`.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        at_once: int | None = None,
        per_second: float | None = None,
        longest: float | None = None,
        remembers: bool = True,
    ) -> None:
        self._api_key = api_key
        self._remembers = remembers
        self._limits: dict[str, Any] = {
            "at_once": at_once,
            "per_second": per_second,
            "longest": longest,
        }
        self._seen: list[Seen] = []
        self._sandboxes: Sandboxes | None = None
        self.faults = FaultPlan()
        self.url = ""

    # What a test looks at.

    def environ(self) -> dict[str, str]:
        """What leads the official SDK here."""
        return {
            "E2B_API_KEY": self._api_key or "emulated",
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "NO_PROXY": "127.0.0.1",
        }

    @property
    def live(self) -> list[str]:
        """Ids of the live sandboxes."""
        return list(self._box.live)

    def counts(self) -> dict[str, int]:
        return self._box.counts()

    @property
    def metadata(self) -> Mapping[str, Mapping[str, str]]:
        """Of every sandbox that was ever created, by id."""
        return self._box.metadata

    def lifetime_left(self, identity: str) -> float:
        """Seconds until a live sandbox expires."""
        timer = self._box.live[identity].timer
        assert timer is not None
        return timer.when() - monotonic()

    def seen(self, operation: str | None = None) -> list[Seen]:
        """The operations that arrived, in order."""
        return [one for one in self._seen if operation is None or one.operation == operation]

    @property
    def _box(self) -> Sandboxes:
        assert self._sandboxes is not None
        return self._sandboxes

    # Its life.

    async def start(self, port: int = 0) -> None:
        """Listen. Raises: OSError."""
        listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._sandboxes = Sandboxes(**self._limits)
        self._envd = Envd(self._sandboxes, self.faults)
        self._closing = asyncio.Event()
        self._working: set[asyncio.Task[web.StreamResponse]] = set()
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(
            [
                web.get("/emulator", self._numbers),
                web.post("/v2/sandboxes", self._rest("create", self._create)),
                web.get("/v2/sandboxes", self._rest("list", self._list)),
                web.delete("/sandboxes/{id}", self._rest("kill", self._kill)),
                web.get("/sandboxes/{id}", self._rest("info", self._info)),
                web.post("/sandboxes/{id}/timeout", self._rest("timeout", self._timeout)),
                web.get("/health", self._health),
                web.post("/files", self._write),
                web.get("/files", self._read),
                web.post("/process.Process/{method}", self._rpc),
            ]
        )
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        """End every sandbox and close every connection. The counts stay readable."""
        self._closing.set()
        await self._box.close()
        await self._runner.cleanup()
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self._box.close()  # what a last request has created meanwhile

    # The REST API.

    def _rest(self, operation: str, answer: Any) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            body = json.loads(raw) if raw else {}
            if (refused := self._unauthorized(request)) is not None:
                return refused
            work = asyncio.ensure_future(
                self._under_fault(
                    operation, request, body, lambda fault: answer(request, body, fault)
                )
            )
            self._working.add(work)
            work.add_done_callback(self._working.discard)
            return await asyncio.shield(work)  # a client that leaves changes nothing

        return handle

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        key = request.headers.get("X-API-KEY", "")
        if not key or (self._api_key is not None and key != self._api_key):
            return rest_error(401, "Invalid API key")
        return None

    async def _create(
        self, request: web.Request, body: Mapping[str, Any], fault: Fault | None
    ) -> web.Response:
        hidden = fault.seconds if fault is not None and fault.kind == "hide" else 0.0
        made = self._box.create(body, request.headers.get("Idempotency-Key"), hidden=hidden)
        return web.json_response(made, status=201)

    async def _list(
        self, request: web.Request, body: Mapping[str, Any], fault: Fault | None
    ) -> web.Response:
        # The SDK quotes names and values once more than a query does.
        pairs = parse_qsl(request.query.get("metadata", ""))
        wanted = {unquote(name): unquote(value) for name, value in pairs}
        found = self._box.listing(wanted)
        first = int(request.query.get("nextToken") or 0)
        last = first + int(request.query.get("limit") or _PAGE)
        headers = {"x-next-token": str(last)} if last < len(found) else {}
        return web.json_response([one.listed() for one in found[first:last]], headers=headers)

    async def _kill(
        self, request: web.Request, body: Mapping[str, Any], fault: Fault | None
    ) -> web.Response:
        if not await asyncio.shield(self._box.end(request.match_info["id"])):
            return rest_error(404, "the sandbox was not found")
        return web.Response(status=204)

    async def _info(
        self, request: web.Request, body: Mapping[str, Any], fault: Fault | None
    ) -> web.Response:
        return web.json_response(self._known(request.match_info["id"]).listed())

    async def _timeout(
        self, request: web.Request, body: Mapping[str, Any], fault: Fault | None
    ) -> web.Response:
        self._box.set_lifetime(self._known(request.match_info["id"]), float(body["timeout"]))
        return web.Response(status=204)

    def _known(self, identity: str) -> Sandbox:
        """Raises: Refusal."""
        if identity not in self._box.live:
            raise Refusal(404, "the sandbox was not found")
        return self._box.live[identity]

    async def _numbers(self, request: web.Request) -> web.Response:
        return web.json_response({**self.counts(), "ids": self.live})

    # The sandboxes.

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return await self._inside("health", request, {}, lambda sandbox: _done(204))

    async def _write(self, request: web.Request) -> web.StreamResponse:
        return await self._inside(
            "write", request, {}, lambda sandbox: self._envd.write_file(sandbox, request)
        )

    async def _read(self, request: web.Request) -> web.StreamResponse:
        return await self._inside(
            "read", request, {}, lambda sandbox: self._envd.read_file(sandbox, request)
        )

    async def _rpc(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        raw = await request.read()
        if method in ("Start", "Connect"):
            message = unframed(raw)
            answer = self._envd.start if method == "Start" else self._envd.connect
            return await self._inside(
                "start", request, message, lambda sandbox: answer(sandbox, request, message)
            )
        unary = self._envd.unary.get(method)
        if unary is None:
            return rest_error(404, f"the emulator has no {method}")
        message = json.loads(raw)
        return await self._inside(
            _RPC.get(method, method), request, message, lambda sandbox: unary(sandbox, message)
        )

    async def _inside(
        self, operation: str, request: web.Request, body: Mapping[str, Any], answer: Any
    ) -> web.StreamResponse:
        """An operation in a sandbox, which the proxy finds by a header."""
        identity = request.headers.get("E2b-Sandbox-Id", "")

        async def handle(fault: Fault | None) -> web.StreamResponse:
            sandbox = self._box.live.get(identity)
            if sandbox is None:
                return gone(identity)
            if request.headers.get("X-Access-Token") != sandbox.token and operation != "health":
                return rest_error(401, "Invalid access token")
            response: web.StreamResponse = await answer(sandbox)
            return response

        return await self._under_fault(operation, request, body, handle, identity)

    # One operation.

    async def _under_fault(
        self,
        operation: str,
        request: web.Request,
        body: Mapping[str, Any],
        handle: Any,
        identity: str = "",
    ) -> web.StreamResponse:
        if self._remembers:
            self._seen.append(Seen(operation, body, request.headers, monotonic()))
        fault = self.faults.next(operation, body)
        if fault is not None and not fault.executes:
            match fault.kind:
                case "vanish":
                    await self._box.end(identity, "vanished")
                case "late":
                    await asyncio.sleep(fault.seconds)
                case "hold":
                    assert fault.gate is not None
                    await fault.gate.passed()
                case _:
                    return await self._misbehave(request, fault, None)
            fault = None
        try:
            reply: web.StreamResponse = await handle(fault)
        except Refusal as refusal:
            reply = rest_error(refusal.status, str(refusal), refusal.retry_after)
        if fault is None or fault.kind == "hide":
            return reply
        return await self._misbehave(request, fault, reply)

    async def _misbehave(
        self, request: web.Request, fault: Fault, reply: web.StreamResponse | None
    ) -> web.StreamResponse:
        match fault.kind:
            case "delay":
                await asyncio.sleep(fault.seconds)
            case "hold":
                assert fault.gate is not None
                await fault.gate.passed()
            case "status":
                headers = {"Content-Type": "application/json", **fault.headers}
                return web.Response(status=fault.status, body=fault.body, headers=headers)
            case "hang":
                await self._closing.wait()
            case "drop" | "reset":
                break_connection(request, reset=fault.kind == "reset")
            case _:
                raise ValueError(f"the emulator has no fault {fault.kind!r}")
        return reply if reply is not None else web.Response(status=500)


async def _done(status: int) -> web.Response:
    return web.Response(status=status)
