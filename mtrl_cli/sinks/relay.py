"""From a run to its sinks, in which nothing that a sink does can stop or slow the run.

Each sink lives in a daemon thread of its own, where it is imported and opened too, behind a queue
of bounded length. What finds the queue full is left out. The first thing that goes wrong is told
in one line, and the sink is not used again. Closing waits a bounded time; a sink that hangs then is
left behind, and ends with the process.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

LONGEST_QUEUE = 1000
CLOSING = 10.0
"""Seconds that all sinks together may take to end."""


class Sink(Protocol):
    """One tracker, open for one run. Called in one thread only."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures at a step; steps never fall, but one may come twice."""

    def close(self, summary: Mapping[str, Any]) -> None:
        """The run is over: send what is left."""


Opener = Callable[[], Sink]
_END = "end"


class Relay:
    """The sinks of one run; ``tell`` hears one line of each that fails, in that sink's thread."""

    def __init__(self, openers: Mapping[str, Opener], tell: Callable[[str], None]) -> None:
        self._workers = [_Worker(name, opener, tell) for name, opener in openers.items()]

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for worker in self._workers:
            worker.put((step, dict(figures)))

    def close(self, summary: Mapping[str, Any], seconds: float = CLOSING) -> None:
        """End every sink; returns after ``seconds`` at the latest."""
        for worker in self._workers:
            worker.end(dict(summary))
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            worker.join(max(deadline - time.monotonic(), 0.0))


class _Worker:
    def __init__(self, name: str, opener: Opener, tell: Callable[[str], None]) -> None:
        self._name, self._opener, self._tell = name, opener, tell
        self._queue: queue.Queue[tuple[int | str, dict[str, Any]]] = queue.Queue(LONGEST_QUEUE)
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def put(self, item: tuple[int | str, dict[str, Any]]) -> None:
        if not self._told.is_set():
            try:
                self._queue.put_nowait(item)
            except queue.Full:
                self._fails(f"does not keep up: {LONGEST_QUEUE} lines wait")

    def end(self, summary: dict[str, Any]) -> None:
        self.put((_END, summary))

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._fails("is still busy at the end of the run; what it has not sent is lost")

    def _work(self) -> None:
        try:
            sink = self._opener()
            while not self._told.is_set():
                at, figures = self._queue.get()
                if isinstance(at, str):
                    sink.close(figures)
                    return
                sink.log(at, figures)
        except BaseException as error:  # some trackers raise SystemExit
            said = " ".join(str(error).split()) or type(error).__name__
            self._fails(said)

    def _fails(self, why: str) -> None:
        if not self._told.is_set():
            self._told.set()
            self._tell(f"sink {self._name}: {why}; the run goes on without it")
