"""The worker threads: one failure ends one promise, and the thread goes on."""

import asyncio
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtrl_cli.local import scheduler
from mtrl_cli.local.answers import Answer
from mtrl_cli.local.engine import Completion, SampleSpec, Shape
from mtrl_cli.local.engine.weights import initial
from mtrl_cli.local.errors import Failure, WorkError
from mtrl_cli.local.scheduler import SampleWork, SamplingThread, TrainingThread
from mtrl_cli.local.snapshots import BASE_ID, Snapshot, Snapshots
from mtrl_cli.local.store import Ref, Store, new_model_id

SHAPE = Shape(vocab=16, width=16, layers=1, heads=2, context=64)
BASE = Snapshot(BASE_ID, "mtrl-tiny", "mtrl-tiny")


class Moody:
    """A sampler that fails while `angry` and else finishes everything at once."""

    def __init__(self, shape: Shape, max_rows: int) -> None:
        self.waiting: dict[Hashable, SampleSpec] = {}
        self.angry = False
        self.forgotten: list[str] = []
        self.logprob = -1.0

    @property
    def active(self) -> int:
        return len(self.waiting)

    def submit(self, key: Hashable, weights_id: str, weights: Any, spec: SampleSpec) -> None:
        if spec.max_tokens == 13:
            raise ValueError("an unlucky request")
        self.waiting[key] = spec

    def cancel(self, key: Hashable) -> None:
        self.waiting.pop(key, None)

    def forget(self, weights_id: str) -> None:
        self.forgotten.append(weights_id)

    def step(self) -> list[tuple[Hashable, Completion]]:
        if self.angry:
            raise MemoryError("no room")
        done = [(key, Completion([1], [self.logprob], "stop")) for key in self.waiting]
        self.waiting.clear()
        return done


def spec(max_tokens: int = 4) -> SampleSpec:
    return SampleSpec(np.array([1], np.int32), max_tokens)


async def ask(thread: SamplingThread, *specs: SampleSpec, snapshot: Snapshot = BASE) -> object:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    thread.submit(SampleWork(snapshot, list(specs), answer.set_result))
    return await asyncio.wait_for(answer, 10)


async def test_a_failing_request_or_step_ends_only_what_it_must(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduler, "Sampler", Moody)
    thread = SamplingThread(asyncio.get_running_loop(), SHAPE, 8)
    sampler: Any = thread._sampler
    store = Store(tmp_path)
    snapshots = Snapshots(store, initial(SHAPE, 0), thread.forget)
    thread.start(snapshots)
    good = await ask(thread, spec(), spec())
    assert isinstance(good, Answer)
    unlucky = await ask(thread, spec(), spec(13))
    assert isinstance(unlucky, Failure)
    assert (unlucky.category, "an unlucky request" in unlucky.error) == ("server", True)
    assert sampler.waiting == {}
    sampler.angry = True
    failed = await ask(thread, spec())
    assert isinstance(failed, Failure)
    assert "no room" in failed.error
    sampler.angry = False
    again = await ask(thread, spec(), spec())
    assert isinstance(again, Answer)
    assert again.result == good.result
    sampler.logprob = float("nan")
    broken = await ask(thread, spec())
    assert isinstance(broken, Failure)
    assert "not finite" in broken.error
    gone = Snapshot(
        "x",
        "tinker://m/sampler_weights/x",
        "mtrl-tiny",
        ref=Ref(new_model_id(), "sampler_weights", "x"),
    )
    missing = await ask(thread, spec(), snapshot=gone)
    assert isinstance(missing, Failure)
    assert (missing.category, "not in the store" in missing.error) == ("user", True)
    thread.stop()
    assert await asyncio.to_thread(thread.join, 5)
    store.close()
    assert "Traceback" in capsys.readouterr().err


async def test_a_failing_job_ends_only_its_promise(capsys: pytest.CaptureFixture[str]) -> None:
    thread = TrainingThread(asyncio.get_running_loop())
    got: list[object] = []
    ended = asyncio.Event()

    def refuse() -> object:
        raise WorkError("not today", "user")

    def crash() -> object:
        raise KeyError("a bug")

    def bad_delivery(result: object) -> None:
        got.append(result)
        if not isinstance(result, Failure):
            raise ValueError("cannot be written")

    thread.submit(refuse, got.append)
    thread.submit(crash, got.append)
    thread.submit(lambda: 1, bad_delivery)
    thread.submit(lambda: 2, lambda result: (got.append(result), ended.set()))  # type: ignore[func-returns-value]
    await asyncio.wait_for(ended.wait(), 10)
    assert got == [
        Failure("not today", "user"), Failure("KeyError: 'a bug'", "server"),
        1, Failure("ValueError: cannot be written", "server"), 2,
    ]  # fmt: skip
    thread.stop()
    assert await asyncio.to_thread(thread.join, 5)
    assert capsys.readouterr().err.count("Traceback") == 2


def test_snapshots_are_dropped_and_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    forgotten: list[str] = []
    model = new_model_id()
    store.new_model(model, {})
    one = {"w": np.ones(1000, np.float32)}
    made = []
    for number in range(4):
        ref = Ref(model, "sampler_weights", f"s{number}")
        store.save(ref, {"w": one["w"] * number}, {"id": f"id{number}"})
        made.append(Snapshot(f"id{number}", ref.uri, "b", ref=ref))
    snapshots = Snapshots(store, one, forgotten.append, max_bytes=9000)
    for number, snapshot in enumerate(made):
        weights = snapshots.get(snapshot)
        assert weights["w"][0] == number
        assert not weights["w"].flags.writeable
    assert forgotten == ["id0", "id1"]
    assert snapshots.counters() == {"held": 2, "bytes": 8000}
    assert snapshots.get(made[0])["w"][0] == 0
    # The same name with other weights is never taken for the snapshot it once was.
    ref = made[1].ref
    assert ref is not None
    store.delete(ref)
    store.save(ref, one, {"id": "other"})
    with pytest.raises(WorkError, match="not what it was"):
        snapshots.get(made[1])
    store.close()
