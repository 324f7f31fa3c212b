"""The words of the wire: Connect's framing, JSON errors, broken connections."""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

from aiohttp import web

STREAM_TYPE = "application/connect+json"
_END = 0x02


def frame(message: Mapping[str, Any], flags: int = 0) -> bytes:
    """One message of a Connect stream: flags, length (big-endian), JSON."""
    payload = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(payload)) + payload


def end_frame(error: Mapping[str, Any] | None = None) -> bytes:
    return frame({} if error is None else {"error": error}, _END)


def unframed(data: bytes) -> dict[str, Any]:
    """The first message of a request's stream."""
    _, length = struct.unpack(">BI", data[:5])
    message: dict[str, Any] = json.loads(data[5 : 5 + length])
    return message


def rest_error(status: int, message: str, retry_after: float | None = None) -> web.Response:
    """An error of the REST API, or of the proxy before a sandbox: an integer code."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return web.json_response({"code": status, "message": message}, status=status, headers=headers)


def connect_error(code: str, message: str) -> web.Response:
    """An error of a unary call: a word for a code."""
    status = {"not_found": 404, "invalid_argument": 400, "failed_precondition": 400}[code]
    return web.json_response({"code": code, "message": message}, status=status)


def gone(identity: str) -> web.Response:
    """What the proxy answers for a sandbox that is not there."""
    return web.json_response(
        {"sandboxId": identity, "code": 502, "message": "The sandbox was not found"}, status=502
    )


def break_connection(request: web.Request, *, reset: bool) -> None:
    """Close without an answer; with ``reset`` the other side sees an RST, not an end."""
    transport = request.transport
    if transport is None:
        return
    if reset:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()
