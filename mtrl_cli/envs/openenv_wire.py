"""One session of OpenEnv's ``/ws`` protocol: a WebSocket that holds one environment.

The wire is JSON text frames, one reply per request and no request ids, so a reply that comes
late would be read as the answer to the next request. Therefore a session whose request did not
end as it should (its deadline passed, its caller was cancelled, the connection broke) is lost:
the connection is cut, and nothing is asked of it again. Nothing reconnects, because another
connection is another environment, and one that was not reset.

Error frames are judged by their code:

==================================  ===========================================================
``VALIDATION_ERROR``                of a step: `ToolError` with the field's reason, and the
                                    session goes on; of a reset: `EnvironmentFault`
``EXECUTION_ERROR``                 `EnvironmentFault`; what state the environment is in then,
                                    nobody knows, so it is not asked again
``CAPACITY_REACHED``                `ServerFull`
``SESSION_ERROR``, any other        `SessionLost`
==================================  ===========================================================

OpenEnv's own client is not used: it forgets the reasons of a refused action, and after a failed
call it either answers the next one with the late reply (openenv-core 0.3) or connects again, to
an environment that was not reset (openenv 0.10).
"""

import asyncio
import contextlib
import json
import socket as sockets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from mtrl_cli.envs.interface import Deadlines, OneClose, Reply, SessionLost, Usable
from mtrl_cli.envs.misnamed import ActionRefusedError
from mtrl_cli.foreign import line, told
from mtrl_cli.rollout.ports import EnvironmentFault, InfrastructureFailure

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

LARGEST_FRAME = 16 * 2**20
"""Bytes of one reply; a larger one ends the session. A server takes as much of a request."""

_IN_GOOD_ORDER = (1000, 1008, 1013)
"""Codes that a server without room closes with: normal, policy, try again later."""

_OF_THE_ENVIRONMENT = ("EXECUTION_ERROR", "VALIDATION_ERROR")
"""Errors after which the session is still there."""

_SHUTDOWN_SECONDS = 1.0


class ServerFull(InfrastructureFailure):
    """The server has no room for another session now."""


class WireSession:
    """`mtrl_cli.envs.interface.Session` over one WebSocket.

    Args:
        name: the environment, in error messages.
        socket: connected; it belongs to the session from here on.
        returned: called when the session has ended.
    """

    def __init__(
        self,
        name: str,
        socket: "ClientWebSocketResponse[Any]",
        deadlines: Deadlines,
        returned: Callable[[], None],
    ) -> None:
        self._name = name
        self._socket = socket
        self._deadlines = deadlines
        self._returned = returned
        self._usable = Usable(name)
        self._waiting: asyncio.Future[Mapping[str, Any]] | None = None
        self._last_words: Mapping[str, Any] | None = None
        """An error frame that answers nothing: why the server is about to close."""
        self._refused_entry = False
        self._closing = OneClose(self._close)
        # It reads all the time: only who reads answers the server's pings.
        self._reader = asyncio.ensure_future(self._read())

    @property
    def id(self) -> str:
        """Our end of the connection, as the server sees it where nothing stands between."""
        name = self._socket.get_extra_info("sockname")
        return f"{name[0]}:{name[1]}" if name else "closed"

    async def greet(self, seconds: float) -> None:
        """Wait until the server has made the environment.

        It says so by answering anything; its state may be asked for at all times.

        Raises:
            ServerFull: there is no room; ask again later.
            SessionLost
        """
        try:
            frame = await self._ask("open", {"type": "state"}, seconds)
        except SessionLost as lost:
            if self._refused_entry:
                raise ServerFull(f"{self._name}: the server closes new sessions") from lost
            raise
        if frame.get("type") == "error" and _code(frame) not in _OF_THE_ENVIRONMENT:
            self._session_error("open", frame)

    async def reset(self, arguments: Mapping[str, Any]) -> Reply:
        return await self._observe("reset", arguments, self._deadlines.reset)

    async def step(self, action: Mapping[str, Any]) -> Reply:
        return await self._observe("step", action, self._deadlines.step)

    async def close(self) -> None:
        await self._closing.wait()

    def abandon(self) -> None:
        """Close without waiting."""
        self._closing.begin()

    # --- one request ----------------------------------------------------------------------------

    async def _observe(self, operation: str, data: Mapping[str, Any], seconds: float) -> Reply:
        frame = await self._ask(operation, {"type": operation, "data": dict(data)}, seconds)
        content = frame.get("data")
        if frame.get("type") == "error":
            self._error(operation, frame)
        if frame.get("type") != "observation" or not isinstance(content, dict):
            self._usable.lose(f"{operation} was answered by {_shown(frame)}")
        observation = content.get("observation")
        if not isinstance(observation, dict):
            raise EnvironmentFault(f"{self._name}: {operation} brought no observation")
        observation.pop("metadata", None)  # openenv-core 0.3 never sends it, later ones may
        return Reply(observation, content.get("reward"), content.get("done"))

    def _error(self, operation: str, frame: Mapping[str, Any]) -> NoReturn:
        """Raises: ActionRefusedError, EnvironmentFault, ServerFull, SessionLost."""
        code = _code(frame)
        if code == "VALIDATION_ERROR":
            listed = frame["data"].get("errors")
            found = listed if isinstance(listed, list) else ()
            errors = [error for error in found if isinstance(error, dict)]
            refused = ActionRefusedError(errors)
            if operation == "step":
                raise refused
            raise EnvironmentFault(f"{self._name}: {operation} refused: {refused}")
        if code == "EXECUTION_ERROR":
            self._usable.end(f"{operation} failed in the environment")
            raise EnvironmentFault(f"{self._name}.{operation} raised {_message(frame)}")
        self._session_error(operation, frame)

    def _session_error(self, operation: str, frame: Mapping[str, Any]) -> NoReturn:
        """Raises: ServerFull, SessionLost."""
        reason = f"{operation} failed at the server: {_message(frame)} ({_code(frame)})"
        if _code(frame) == "CAPACITY_REACHED":
            self._usable.end(reason)
            raise ServerFull(f"{self._name}: {_message(frame)}")
        self._usable.lose(reason)

    async def _ask(
        self, operation: str, request: Mapping[str, Any], seconds: float
    ) -> Mapping[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            EnvironmentFault: the request cannot be written; nothing was sent.
            ServerFull, SessionLost
        """
        text = _encoded(self._name, request)
        if self._last_words is not None:
            self._session_error(operation, self._last_words)
        self._usable.check(operation)
        waiting: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                with contextlib.suppress(ConnectionError):  # the reader finds it out too
                    await self._socket.send_str(text)
                return await waiting
        except asyncio.CancelledError:
            self._cut(f"{operation} was cancelled")
            raise
        except TimeoutError as error:
            reason = f"{operation} passed its deadline of {seconds:g} s"
            self._cut(reason)
            self._usable.lose(reason, error)
        finally:
            self._waiting = None

    # --- the connection -------------------------------------------------------------------------

    async def _read(self) -> None:
        """Give each frame to who waits for it, until the connection ends and with it all."""
        from aiohttp import WSMsgType

        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.TEXT:
                wrong = self._take(message.data)
                if wrong is None:
                    continue
                self._ended(wrong)
                _shut(self._socket)
            elif message.type is WSMsgType.CLOSE:
                self._refused_entry = message.data in _IN_GOOD_ORDER
                self._ended(f"the server closed the connection (code {message.data})")
            else:
                error = self._socket.exception() or message.data
                cause = f": {told(error)}" if error is not None else ""
                self._ended(f"the connection broke{cause}")
            return

    def _take(self, text: str) -> str | None:
        """One frame; what is wrong with it, so that no other can be trusted."""
        try:
            frame = json.loads(text)
        except (ValueError, RecursionError):
            return "a frame came that is not JSON"
        if not isinstance(frame, dict):
            return "a frame came that is no JSON object"
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(frame)
        elif frame.get("type") == "error":
            self._last_words = frame
        else:
            return f"a frame came that nobody had asked for: {_shown(frame)}"
        return None

    def _ended(self, reason: str) -> None:
        self._usable.end(reason)
        if self._waiting is None or self._waiting.done():
            return
        if self._last_words is not None:
            self._waiting.set_result(self._last_words)
        else:
            self._waiting.set_exception(SessionLost(f"{self._name}: {self._usable.reason}"))

    def _cut(self, reason: str) -> None:
        """End the connection now: a reply that is still on its way must not be read."""
        self._usable.end(reason)
        _shut(self._socket)

    async def _close(self) -> None:
        """Tell the server, and wait until it has heard."""
        self._usable.end("it is closed")
        try:
            async with asyncio.timeout(self._deadlines.close):
                if not self._reader.done():
                    with contextlib.suppress(ConnectionError):
                        await self._socket.send_str('{"type":"close"}')
                    await asyncio.wait({self._reader})  # the server closes, the reader answers
                await self._socket.close()
        except TimeoutError as error:
            raise InfrastructureFailure(
                f"{self._name}: the server did not confirm the end of a session within"
                f" {self._deadlines.close:g} s; the connection was cut"
            ) from error
        finally:
            _shut(self._socket)
            await asyncio.wait({self._reader}, timeout=_SHUTDOWN_SECONDS)
            self._reader.cancel()
            await asyncio.wait({self._reader})
            self._returned()


def _encoded(name: str, request: Mapping[str, Any]) -> str:
    try:
        return json.dumps(request, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EnvironmentFault(
            f"{name}: the task's data cannot be written as JSON: {line(error)}"
        ) from error


def _shut(socket: "ClientWebSocketResponse[Any]") -> None:
    """End the connection below the protocol; whoever reads sees its end at once."""
    below = socket.get_extra_info("socket")
    if below is not None:
        with contextlib.suppress(OSError):
            below.shutdown(sockets.SHUT_RDWR)


def _code(frame: Mapping[str, Any]) -> str:
    data = frame.get("data")
    code = data.get("code") if isinstance(data, dict) else None
    return code if isinstance(code, str) else "no code"


def _message(frame: Mapping[str, Any]) -> str:
    data = frame.get("data")
    return line(data.get("message")) if isinstance(data, dict) else _shown(frame)


def _shown(frame: Mapping[str, Any]) -> str:
    try:
        return line(json.dumps(frame))
    except RecursionError:  # read with a few levels to spare, which are used up here
        return "a frame that is nested too deep"
