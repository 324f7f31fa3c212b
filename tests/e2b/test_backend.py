"""The factory: limits, creations of every outcome, kills that take their time, sweeps; nothing is
ever left at the provider."""

import asyncio
import time

import pytest

from mtrl_cli.envs.e2b.backend import CreationRefused
from mtrl_cli.envs.e2b.outage import Outage
from mtrl_cli.envs.e2b.provider import Provider
from mtrl_cli.envs.interface import Deadlines
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.ports import InfrastructureFailure
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from tests.e2b.rig import SAMPLE, SETTLES, Rig, go, rig

HTML = {"Content-Type": "text/html"}


async def play(use: Rig, name: str = "t") -> str:
    async with use.environment(name) as environment:
        await environment.reset(SAMPLE, 0)
        return (await environment.step(go())).text


def nothing_left(use: Rig) -> None:
    assert use.emulator.live == []
    assert use.resources.live == ()
    assert use.journal.open() == []


# --- creations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "created"),
    [
        (faults.drop_reply(), 2),
        (faults.drop_request(), 1),
        (faults.reset(), 2),
        (faults.status(504, {"code": 504, "message": "late"}, executes=True), 2),
        (faults.status(500, {"code": 500, "message": "oops"}), 1),
        (faults.status(503, "<html>", headers=HTML, executes=True), 2),
        (faults.status(409, {"code": 409, "message": "in progress"}), 1),
    ],
    ids=["lost reply", "lost request", "reset", "504", "500", "503 HTML", "409"],
)
async def test_a_creation_of_unknown_outcome_is_tried_anew_and_its_sandbox_found(
    emulator: E2BEmulator, fault: faults.Fault, created: int
) -> None:
    emulator.faults.add("create", fault)
    began = time.monotonic()
    async with rig(emulator) as use:
        assert await play(use) == "step 1"
        lost = [key for key, state, _ in use.journal.lines if key.startswith("t/sandbox-2/sandbox")]
        assert lost
    # It was looked for until it was found, or until it could not appear any more.
    assert created == 2 or time.monotonic() - began >= SETTLES
    nothing_left(use)
    assert use.journal.states(lost[0])[0] == "requested"
    assert emulator.counts()["created"] == created
    keys = {seen.headers["Idempotency-Key"] for seen in emulator.seen("create")}
    assert len(keys) == 2  # a new key for the new attempt


async def test_a_sandbox_that_appears_late_is_found(emulator: E2BEmulator) -> None:
    """Its creation is answered by nothing, and it is listed only after a while."""
    emulator.faults.add("create", faults.late(2.0))
    async with rig(emulator, settles=3.0, deadlines=Deadlines(0.5, 5.0, 5.0, 5.0)) as use:
        assert await play(use) == "step 1"
        assert emulator.counts()["created"] == 1
    nothing_left(use)
    assert emulator.counts() == {
        "created": 2, "live": 0, "most": 1, "killed": 2, "expired": 0, "vanished": 0
    }  # fmt: skip


async def test_unknown_outcomes_without_end_are_infrastructure(emulator: E2BEmulator) -> None:
    emulator.faults.add("create", faults.drop_reply(), times=-1)
    async with rig(emulator) as use:
        with pytest.raises(InfrastructureFailure, match="no sandbox: RemoteProtocolError"):
            await play(use)
        emulator.faults.clear()
        assert await play(use) == "step 1"
    nothing_left(use)
    assert emulator.counts()["killed"] == emulator.counts()["created"] == 4


async def test_a_service_that_is_gone_ends_the_run(emulator: E2BEmulator) -> None:
    """However many episodes ask, and however often each is tried: one time for all of them."""
    async with rig(emulator, outage=0.3) as use:
        assert await play(use) == "step 1"
        emulator.faults.add("create", faults.drop_request(), times=-1)
        ended: list[str] = []
        while not ended:
            try:
                await play(use, "u")
            except InfrastructureFailure:
                continue
            except CreationRefused as refused:
                ended.append(str(refused))
        emulator.faults.clear()
    assert "has created no sandbox for 0.3 s: " in ended[0]
    assert "creations in a row failed, the last one with: RemoteProtocolError" in ended[0]
    assert any("the run ends when none succeeds for 0.3 s" in text for text in use.told)
    nothing_left(use)


async def test_failures_between_creations_that_succeed_are_no_outage(emulator: E2BEmulator) -> None:
    async with rig(emulator, outage=0.0, settles=0.2) as use:
        for _ in range(3):
            emulator.faults.add("create", faults.drop_request(), times=2)
            assert await play(use) == "step 1"
    nothing_left(use)


async def test_a_slot_that_comes_with_the_cancellation_is_given_back(
    emulator: E2BEmulator,
) -> None:
    """The slot is had, and who waited for it is cancelled before it goes on."""
    async with rig(emulator, at_once=1) as use:
        making = asyncio.ensure_future(use.factory.lender().make("t/sandbox-9"))
        while not use.factory._pace._slots.locked():
            await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert emulator.counts()["created"] == 0
        async with asyncio.timeout(20):
            assert await play(use) == "step 1"
    nothing_left(use)


def test_an_outage_is_a_row_of_failures_over_a_time() -> None:
    outage = Outage(60.0)
    assert [outage.failed(0, 20), outage.failed(10, 59), outage.failed(30, 59.9)] == [False] * 3
    assert outage.failed(40, 60)
    outage.over(60)
    assert [outage.failed(100, 200), outage.failed(110, 300)] == [False] * 2
    assert outage.failed(310, 311)


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        (faults.status(429, {"code": 429, "message": "slow"}, retry_after=1.5), 1.5),
        (faults.status(429, "<html>", headers=HTML), 0.5),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (faults.status(429, "<html>", headers=HTML, retry_after=1.5), 1.5),
                (faults.status(429, {"code": 429, "message": "slow"}), 0.5),
                (faults.status(503, {"code": 503, "message": "busy"}), 0.5),
                (faults.status(503, {"code": 503, "message": "busy"}, retry_after=0.8), 0.8),
            )
        ),
    ],
)
async def test_what_was_surely_refused_is_backed_off_from_and_makes_nothing_lost(
    emulator: E2BEmulator, fault: faults.Fault, least: float
) -> None:
    emulator.faults.add("create", fault)
    async with rig(emulator, settles=60.0) as use:
        began = time.monotonic()
        assert await asyncio.gather(play(use, "a"), play(use, "b")) == ["step 1", "step 1"]
        assert time.monotonic() - began >= least
        assert len(emulator.seen("create")) == 3
    assert time.monotonic() - began < 20  # and nothing was waited for at the end
    nothing_left(use)
    assert emulator.counts()["created"] == 2


@pytest.mark.long
async def test_a_service_that_is_not_there_is_infrastructure(
    emulator: E2BEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(emulator) as use:
        with monkeypatch.context() as away:
            away.setenv("E2B_API_URL", "http://127.0.0.1:9")
            with pytest.raises(InfrastructureFailure, match="no sandbox: Connect"):
                await play(use)
        (told,) = use.told  # the first of three failures
        assert told.startswith(
            "E2B at http://127.0.0.1:9: a creation failed, it is tried again (the run ends when"
            " none succeeds for 60 s): Con"
        )
    nothing_left(use)
    assert emulator.counts()["created"] == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_for_good_ends_the_run(emulator: E2BEmulator, status: int) -> None:
    emulator.faults.add("create", faults.status(status, {"code": status, "message": "never"}))
    async with rig(emulator) as use:
        with pytest.raises(CreationRefused, match=rf"creates no sandbox: .*{status}: .*never"):
            await play(use)
    nothing_left(use)


async def test_a_wrong_key_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with E2BEmulator(api_key="right") as strict:
        for name, value in strict.environ().items():
            monkeypatch.setenv(name, value)
        provider = Provider("wrong", template="base", timeout=5.0)
        with pytest.raises(MtrlError, match=rf"E2B at {strict.url}: .*401"):
            await provider.check()


# --- limits -------------------------------------------------------------------------------------


async def test_a_plan_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service would refuse what goes beyond; nothing is refused."""
    with E2BEmulator(at_once=4, per_second=20, longest=200) as limited:
        for name, value in limited.environ().items():
            monkeypatch.setenv(name, value)
        async with rig(limited, at_once=4, per_second=15, longest=200.0, life=1000.0) as use:
            opened, all_of_it = 0, asyncio.Event()

            async def one(number: int) -> None:
                nonlocal opened
                async with use.environment(f"t{number}") as environment:
                    await environment.reset(SAMPLE, 0)
                    opened += 1
                    if opened == 4:
                        all_of_it.set()
                    await all_of_it.wait()

            await asyncio.gather(*(one(number) for number in range(12)))
        assert limited.counts()["most"] == 4
        assert len(limited.seen("create")) == 12
    nothing_left(use)


async def test_a_lifetime_is_the_trajectorys_and_a_margin(emulator: E2BEmulator) -> None:
    async with rig(emulator, life=100.0) as use, use.environment() as environment:
        left = emulator.lifetime_left(environment.session.id)  # type: ignore[attr-defined]
        assert 160 < left <= 164
    assert emulator.seen("create")[0].body["timeout"] == 164
    assert emulator.seen("create")[0].body["autoPause"] is False


async def test_who_waits_for_a_slot_and_is_cancelled_creates_nothing(
    emulator: E2BEmulator,
) -> None:
    async with rig(emulator, at_once=1) as use, use.environment("a"):
        waiting = [asyncio.ensure_future(play(use, f"w{number}")) for number in range(5)]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert time.monotonic() - began < 1.0
    nothing_left(use)
    assert emulator.counts()["created"] == 1


async def test_a_cancelled_creation_in_flight_is_awaited_and_killed(emulator: E2BEmulator) -> None:
    gate = faults.Gate()
    emulator.faults.add("create", faults.hold(gate))
    async with rig(emulator, settles=60.0) as use:
        playing = asyncio.ensure_future(play(use))
        await asyncio.to_thread(gate.wait_for, 1)
        playing.cancel()
        await asyncio.sleep(0.1)
        gate.open()
        await asyncio.wait({playing})
        assert playing.cancelled()
        assert use.journal.states("t/sandbox-2") == ["requested", "returning", "released"]
    nothing_left(use)


@pytest.mark.long
async def test_256_sandboxes_at_once(emulator: E2BEmulator) -> None:
    """Every one has a stream open at the same time."""
    count = 256
    ready, all_ready = 0, asyncio.Event()

    async def one(use: Rig, number: int) -> str:
        nonlocal ready
        async with use.environment(f"t{number}") as environment:
            await environment.reset(SAMPLE, number % 8)
            ready += 1
            if ready == count:
                all_ready.set()
            await all_ready.wait()
            return (await environment.step(go())).text

    deadlines = Deadlines(120.0, 120.0, 120.0, 60.0)
    async with rig(emulator, deadlines=deadlines) as use:
        texts = await asyncio.gather(*(one(use, number) for number in range(count)))
    assert texts == ["step 1"] * count
    nothing_left(use)
    assert emulator.counts()["most"] == count
    assert emulator.counts()["killed"] == count


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        faults.late(1.0),
        faults.delay(1.0),
        faults.drop_reply(),
        faults.drop_request(),
        faults.reset(),
        faults.status(503, "<html>", headers=HTML),
        faults.status(429, {"code": 429, "message": "slow"}),
    ],
)
async def test_a_kill_is_repeated_until_it_is_known(
    emulator: E2BEmulator, fault: faults.Fault
) -> None:
    emulator.faults.add("kill", fault)
    async with rig(emulator) as use:
        assert await play(use) == "step 1"
    nothing_left(use)


async def test_a_kill_that_hangs_is_quarantined_and_made_good_by_the_last_sweep(
    emulator: E2BEmulator,
) -> None:
    emulator.faults.add("kill", faults.status(500, {"code": 500, "message": "no"}), times=-1)
    async with rig(emulator, deadlines=Deadlines(5.0, 5.0, 2.0, 1.0)) as use:
        assert await play(use) == "step 1"
        (borrow,) = use.resources.quarantined
        assert "could not be killed within 1 s" in borrow.describe()
        assert f"e2b sandbox kill {borrow.id}" in borrow.describe()
        emulator.faults.clear()
    nothing_left(use)


@pytest.mark.long
async def test_a_sandbox_that_cannot_be_killed_is_named(emulator: E2BEmulator) -> None:
    emulator.faults.add("kill", faults.status(500, {"code": 500, "message": "no"}), times=-1)
    async with rig(emulator, deadlines=Deadlines(5.0, 5.0, 2.0, 1.0)) as use:
        assert await play(use) == "step 1"
    names = [borrow.describe() for borrow in use.resources.live]
    assert len(names) == 2
    assert f"{emulator.live[0]} could not be killed" in names[1]
    assert "mtrl_run run-1" in names[0]


async def test_whatever_carries_the_runs_mark_is_ended(emulator: E2BEmulator) -> None:
    from e2b import AsyncSandbox

    async def stray(run: str) -> str:
        marks = {"mtrl": "sandbox", "mtrl_run": run, "mtrl_borrow": "x", "mtrl_try": "1"}
        return str((await AsyncSandbox.create(timeout=60, metadata=marks)).sandbox_id)

    dead, living, other = [await stray(run) for run in ("dead", "living", "run-1")]
    async with rig(emulator, dead=lambda run: run == "dead") as use:
        assert dead not in emulator.live
        assert other in emulator.live
        assert use.told == ["ended 1 sandbox(es) that dead runs had left: dead"]
    assert emulator.live == [living]


@pytest.mark.long
async def test_a_service_that_lists_nothing_is_told_in_one_line(emulator: E2BEmulator) -> None:
    emulator.faults.add("list", faults.status(503, "<html>", headers=HTML), times=-1)
    with pytest.raises(MtrlError, match=r"E2B at http://\S+: sandboxes cannot be listed: Service"):
        async with rig(emulator):
            pass


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("E2B_DEBUG", "true", "creates no sandboxes and kills none"),
        ("E2B_SANDBOX_URL", "", "set both, or neither"),
    ],
)
async def test_what_leads_the_sdk_astray_is_refused(
    emulator: E2BEmulator, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=told):
        async with rig(emulator):
            pass
