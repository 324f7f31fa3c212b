"""One fake policy and environment, and how what they are played with is measured.

Standard library only: it runs in mtrl's environment and in a peer's. A *player* plays groups of
episodes of a `Workload` and returns what it keeps of them; `measured` gives it to one measurement:

- ``cpu``: CPU microseconds a turn, the best of some rounds;
- ``memory``: bytes that the finished episodes hold, each, by ``tracemalloc``;
- ``concurrent``: the process's peak memory above what it had before, and the CPU a turn, while all
  episodes are in flight at once;
- ``lag``: how long one pass of the event loop keeps what is ready waiting, as CPU time (what else
  the machine does is not in it), and the lateness of a timer in wall time (there it is).

All texts are made before: what a player costs is its own. Sampled tokens and logprobs are a fresh
list each time, as a parsed reply's are; their numbers are shared, to the advantage of who keeps
many copies.
"""

import asyncio
import gc
import random
import resource
import selectors
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import quantiles
from typing import Any

GROUP = 8
"""Episodes of a group."""


@dataclass(frozen=True)
class Text:
    """How many tokens a prompt, a sampled turn and an environment's answer have."""

    prompt: int
    sampled: int
    answer: int


TEXTS = {"short": Text(60, 12, 12), "long": Text(1000, 200, 200)}


@dataclass(frozen=True)
class Workload:
    """``episodes`` (a multiple of `GROUP`) of ``turns`` turns each."""

    text: Text
    turns: int
    episodes: int
    seconds: tuple[float, float] = (0.0, 0.0)
    """Bounds of the time that the policy takes for a turn, drawn for each."""

    def tokens(self, count: int, salt: int) -> list[int]:
        return random.Random(salt).choices(range(1000, 150_000), k=count)

    @cached_property
    def prompt(self) -> list[int]:
        return self.tokens(self.text.prompt, 1)

    @cached_property
    def sampled(self) -> list[int]:
        return self.tokens(self.text.sampled, 2)

    @cached_property
    def logprobs(self) -> list[float]:
        return [-random.Random(index).random() for index in range(self.text.sampled)]

    @cached_property
    def answer(self) -> list[int]:
        return self.tokens(self.text.answer, 3)

    async def think(self) -> None:
        """What the policy's turn takes: at least one pass of the event loop."""
        shortest, longest = self.seconds
        await asyncio.sleep(random.uniform(shortest, longest) if longest else 0)


Player = Callable[[Workload], Awaitable[Sequence[Any]]]
"""Plays all groups at once; what it returns is what it keeps of the episodes."""


def measured(what: str, player: Player, work: Workload, rounds: int) -> dict[str, float]:
    """One measurement of ``player`` on ``work``; see the module's docstring."""
    if what == "cpu":
        return _cpu(player, work, rounds)
    if what == "memory":
        return _memory(player, work)
    if what == "concurrent":
        return _concurrent(player, work)
    return _lag(player, work)


def _cpu(player: Player, work: Workload, rounds: int) -> dict[str, float]:
    async def once() -> float:
        gc.collect()
        before = time.process_time()
        await player(work)
        return (time.process_time() - before) / (work.turns * work.episodes)

    async def all_rounds() -> list[float]:
        await once()  # warm
        return [await once() for _ in range(rounds)]

    return {"us": 1e6 * min(asyncio.run(all_rounds()))}


def _memory(player: Player, work: Workload) -> dict[str, float]:
    async def held() -> float:
        await player(replace(work, turns=1, episodes=GROUP))  # what is imported and cached once
        gc.collect()
        tracemalloc.start()
        kept = await player(work)
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del kept
        return size / work.episodes

    return {"kib": asyncio.run(held()) / 1024}


def _concurrent(player: Player, work: Workload) -> dict[str, float]:
    async def peak() -> tuple[float, float]:
        await player(replace(work, turns=1, episodes=GROUP))
        before, cpu = _peak_bytes(), time.process_time()
        await player(work)
        return _peak_bytes() - before, time.process_time() - cpu

    grown, cpu = asyncio.run(peak())
    return {"mib": grown / 2**20, "us": 1e6 * cpu / (work.turns * work.episodes)}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class _Timed(selectors.DefaultSelector):
    """Notes the CPU time between two waits of the event loop that it serves."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[float] = []
        self._since = time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        self.passes.append(time.thread_time() - self._since)
        events = super().select(timeout)
        self._since = time.thread_time()
        return events


def _lag(player: Player, work: Workload) -> dict[str, float]:
    selector = _Timed()
    late: list[float] = []

    async def tick() -> None:
        while True:
            since = time.monotonic()
            await asyncio.sleep(0.005)
            late.append(time.monotonic() - since - 0.005)

    async def play() -> None:
        ticking = asyncio.ensure_future(tick())
        await player(work)
        ticking.cancel()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(play())
    return {
        "pass_p99_ms": 1e3 * _p99(selector.passes),
        "pass_max_ms": 1e3 * max(selector.passes),
        "late_p99_ms": 1e3 * _p99(late),
    }


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[98]
