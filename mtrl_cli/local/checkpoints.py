"""The routes to what the store holds: training runs, checkpoints, their metadata and downloads.

An archive is asked for as the SDK does: ``…/archive`` answers 302 with a link that is valid for
some minutes, and the link, ``…/download``, answers the tar file to whoever has it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, unquote

from aiohttp import hdrs, web

from mtrl_cli.local import archive, listing
from mtrl_cli.local.errors import RefusedError
from mtrl_cli.local.service import Service
from mtrl_cli.local.store import LinkError, MissingError, Ref, check_name, parse_uri
from mtrl_cli.local.validate import text

Reply = dict[str, Any]
_T = TypeVar("_T")

_FILE = re.compile(
    r"/api/v1/training_runs/([^/]+)/checkpoints/(weights|sampler_weights)/(.+)/(archive|download)"
)


class CheckpointRoutes:
    """Handlers of one service's store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._links = archive.Links()

    def table(self) -> list[tuple[str, Callable[..., Any]]]:
        """Patterns of ``METHOD path``, and their handlers."""
        checkpoint = r"DELETE /api/v1/training_runs/([^/]+)/checkpoints/([^/]+)/(.+)"
        return [
            (r"GET /api/v1/training_runs", self._runs),
            (r"GET /api/v1/training_runs/([^/]+)", self._run),
            (r"GET /api/v1/(?:training_runs|models)/([^/]+)/checkpoints", self._checkpoints),
            (checkpoint, self._delete),
        ]

    async def weights_info(self, body: dict[str, Any], raw: bytes) -> Reply:
        ref = parse_uri(text(body, "tinker_path"), "tinker_path")
        return listing.weights_info(await self._service.checkpoint_meta(ref))

    @staticmethod
    def is_download(method: str, target: str) -> bool:
        """Whether a request brings its own proof of being allowed."""
        if method != "GET":
            return False
        match = _FILE.fullmatch(target.partition("?")[0])
        return match is not None and match[4] == "download"

    async def file(self, request: web.BaseRequest) -> web.Response | None:
        """The answer of the two routes that answer no JSON; None for all others."""
        path, _, query = request.raw_path.partition("?")
        match = _FILE.fullmatch(path)
        if match is None or request.method != "GET":
            return None
        model, kind, name = (unquote(match[group]) for group in (1, 2, 3))
        ref = parse_uri(f"tinker://{model}/{kind}/{check_name(name)}")
        if match[4] == "archive":
            await self._service.checkpoint_meta(ref)
            link, expires = self._links.sign(path.removesuffix("archive") + "download")
            return web.Response(
                status=302,
                headers={
                    hdrs.LOCATION: f"http://{request.host}{link}",
                    hdrs.EXPIRES: formatdate(expires, usegmt=True),
                },
            )
        self._links.check(path, dict(parse_qsl(query)))
        packed = await _stored(ref.uri, archive.pack, self._service.store, ref, self._service.shape)
        file = f"{model}_{kind}_{name.replace('/', '_')}.tar"
        headers = {
            hdrs.CONTENT_TYPE: "application/x-tar",
            hdrs.CONTENT_DISPOSITION: f'attachment; filename="{file}"',
        }
        return web.Response(body=packed, headers=headers)

    async def _runs(self, query: str) -> Reply:
        limit, offset = _number(query, "limit", 20, 1000), _number(query, "offset", 0, 2**31)
        times = {m.id: m.last_request for m in self._service.live_models().values()}
        return await asyncio.to_thread(
            listing.training_runs, self._service.store, limit, offset, times
        )

    async def _run(self, model_id: str, query: str) -> Reply:
        live = self._service.live_models().get(model_id)
        last = None if live is None else live.last_request
        return await _stored(model_id, listing.training_run, self._service.store, model_id, last)

    async def _checkpoints(self, model_id: str, query: str) -> Reply:
        return await _stored(model_id, listing.checkpoints, self._service.store, model_id)

    async def _delete(self, model_id: str, kind: str, name: str, query: str) -> Reply:
        ref: Ref = parse_uri(f"tinker://{model_id}/{kind}/{check_name(name)}")
        await _stored(ref.uri, self._service.store.delete, ref)
        return {"deleted": ref.uri}


async def _stored(name: str, function: Callable[..., _T], *args: Any) -> _T:
    try:
        return await asyncio.to_thread(function, *args)
    except MissingError:
        raise RefusedError(404, f"{name:.200} is not in the store") from None
    except LinkError as error:
        raise RefusedError(409, f"{name:.200} was not deleted: {error}") from None


def _number(query: str, key: str, default: int, high: int) -> int:
    values = parse_qs(query).get(key)
    if not values:
        return default
    if not values[0].isdecimal() or int(values[0]) > high:
        raise RefusedError(400, f"{key}: expected an integer in 0..{high}")
    return int(values[0])
