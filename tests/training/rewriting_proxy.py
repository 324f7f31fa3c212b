"""A proxy before a policy server that tells lies of the test's choosing.

Everything behind it is real, also the logprobs; only the named requests or replies are changed on
their way::

    async with RewritingProxy(server.url, reply=lie_about_logprobs) as proxy:
        ...  # a client of proxy.url
"""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web

Rewrite = Callable[[str, dict[str, Any]], dict[str, Any]]
"""(endpoint, JSON body) → the body that goes on."""


def unchanged(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    return body


class RewritingProxy:
    """Forwards every call of the Tinker API to ``target``."""

    def __init__(self, target: str, *, request: Rewrite = unchanged, reply: Rewrite = unchanged):
        self._target = target
        self._request = request
        self._reply = reply
        self.url = ""
        self.seen: list[str] = []
        """The endpoints that were called, in order."""

    async def __aenter__(self) -> "RewritingProxy":
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert self._runner.addresses
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.Response:
        endpoint, body = request.path.rpartition("/")[2], await request.read()
        self.seen.append(endpoint)
        if body:
            body = json.dumps(self._request(endpoint, json.loads(body))).encode()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length", "accept-encoding")
        }
        target = f"{self._target}{request.path_qs}"
        async with self._session.request(
            request.method, target, data=body or None, headers=headers
        ) as answer:
            content = await answer.read()
            if answer.status == 200 and answer.content_type == "application/json":
                content = json.dumps(self._reply(endpoint, json.loads(content))).encode()
            return web.Response(
                status=answer.status, body=content, content_type=answer.content_type
            )
