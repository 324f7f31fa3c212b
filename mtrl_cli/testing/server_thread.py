"""A test server on a thread and an event loop of its own, for synchronous tests."""

import asyncio
import threading
from typing import Protocol


class Served(Protocol):
    """What can be run there."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class ServerThread(threading.Thread):
    """Runs a server on an event loop of its own."""

    def __init__(self, server: Served, name: str) -> None:
        super().__init__(name=name, daemon=True)
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
