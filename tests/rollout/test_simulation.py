"""The promises of the rollout core over random schedules; see `mtrl_cli.testing.simulation`."""

import asyncio
import gc
import time
from collections import Counter
from typing import get_args

import pytest

from mtrl_cli.testing.clock import Deadlock, run_virtual
from mtrl_cli.testing.schedule import Disturbance
from mtrl_cli.testing.simulation import BrokenPromise, simulate


def play(seeds: range) -> Counter[str]:
    """Play the schedules of ``seeds``; fails with the first broken promise of five bad seeds."""
    counts: Counter[str] = Counter()
    broken: list[str] = []
    reported: dict[int, list[str]] = {}
    for seed in seeds:
        if len(broken) == 5:
            break
        try:
            played = simulate(seed)
        except BrokenPromise as promise:
            broken.append(str(promise))
        else:
            counts += played.counts
            reported[seed] = played.reported
    gc.collect()  # an error that nobody retrieved is reported when its task is collected
    broken += [f"simulate({seed}): {errors}" for seed, errors in reported.items() if errors]
    assert not broken, "\n".join(broken)
    return counts


def test_the_promises_hold() -> None:
    counts = play(range(300))
    # The sample meets what it is there for.
    happened = {name for name, count in counts.items() if count > 0}
    assert happened >= set(get_args(Disturbance))
    assert min(counts["groups complete"], counts["groups failed"], counts["waits cancelled"]) > 50
    assert counts["quarantined"] > counts["released late"] > 50
    assert counts["ended: ZeroDivisionError"] > 5


@pytest.mark.long
@pytest.mark.parametrize("block", range(8))
def test_the_promises_hold_for_long(block: int) -> None:
    counts = play(range(1000 * block, 1000 * (block + 1)))
    assert {name for name, count in counts.items() if count > 0} >= set(get_args(Disturbance))


def test_a_seed_plays_the_same_schedule_every_time() -> None:
    for seed in range(40):
        first, second = simulate(seed), simulate(seed)
        assert first.events == second.events
        assert first.counts == second.counts


class TestVirtualClock:
    def test_an_hour_takes_no_time_and_timers_keep_their_order(self) -> None:
        order: list[tuple[float, str]] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append((asyncio.get_running_loop().time(), name))

        async def main() -> None:
            await asyncio.gather(after(3600, "late"), after(0.5, "early"), after(60, "middle"))

        before = time.perf_counter()
        run_virtual(main())
        assert time.perf_counter() - before < 5
        assert order == [(0.5, "early"), (60, "middle"), (3600, "late")]

    def test_a_deadline_passes_although_nothing_else_happens(self) -> None:
        async def main() -> float:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(7):
                    await asyncio.Event().wait()
            return asyncio.get_running_loop().time()

        assert run_virtual(main()) == 7

    def test_whoever_waits_for_ever_is_told(self) -> None:
        async def main() -> None:
            await asyncio.sleep(3)
            await asyncio.Event().wait()

        with pytest.raises(Deadlock, match="at 3 s every task waits"):
            run_virtual(main())
