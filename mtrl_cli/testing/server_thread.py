"""Test servers, each on the event loop of its test or on a thread with a loop of its own."""

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class LoopbackServer(ABC):
    """A server that a test enters: with ``async with`` it runs on the test's event loop, with
    ``with`` on a thread of its own, for synchronous tests."""

    _thread: "ServerThread | None" = None

    @abstractmethod
    async def start(self, port: int = 0) -> None:
        """Listen. Raises: OSError."""

    @abstractmethod
    async def stop(self) -> None:
        """Close every connection."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = ServerThread(self)
        self._thread.start_and_wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._thread.stop_and_wait()
            self._thread = None


class ServerThread(threading.Thread):
    """Runs a server on an event loop of its own."""

    def __init__(self, server: LoopbackServer) -> None:
        super().__init__(name=type(server).__name__, daemon=True)
        self._server = server
        self._ready = threading.Event()
        self._error: BaseException | None = None

    def start_and_wait(self) -> None:
        """Raises: OSError: it cannot listen."""
        self.start()
        self._ready.wait(10)
        if self._error is not None:
            raise self._error

    def stop_and_wait(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.join(10)

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        try:
            await self._server.start()
        except OSError as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        await self._end.wait()
        await self._server.stop()
