"""One cell of the fault matrix: a training call meets a fault, the run is resumed to its end."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.exactly_once import audit
from tests.exactly_once.calls import BY_KIND, Call, Result
from tests.exactly_once.late import keep_the_model, opened_meanwhile, took_effect
from tests.exactly_once.lines import Place, unwatch, watch
from tests.exactly_once.play import Setting, attempt, folder_in, served

PATIENCE = 1.5
"""Seconds of a call's budget, where a fault is to outlast it."""
POLL = "retrieve_future"


@dataclass(frozen=True)
class Way:
    """A fault, where it strikes, and how the ledger may tell the call's outcome.

    ``ends``: without deduplication; ``deduped``: on a server that has it, where the call has a
    sequence number. A call may have been looked up by its name, and so be done after all.
    """

    name: str
    fault: Callable[[faults.Gate], faults.Fault]
    ends: tuple[str, ...]
    deduped: tuple[str, ...] = ()
    times: int = 1
    poll: bool = False
    impatient: bool = False
    late: bool = False
    """The call takes effect after the next attempt has begun."""
    refused: bool = False
    """No fault: the server takes no connection for a moment after the intent."""
    half_way: bool = False
    """The server says that what it did is not whole, so looking for it does not help."""


_LOST = ("unknown",)
_DONE = ("done",)
_BUSY = {"detail": "the server is busy"}


def _plain(fault: faults.Fault) -> Callable[[faults.Gate], faults.Fault]:
    return lambda gate: fault


WAYS = (
    Way("connection refused", _plain(faults.drop_request()), _DONE, refused=True),
    Way("request dropped", _plain(faults.drop_request()), _LOST, _DONE),
    Way("reply dropped", _plain(faults.drop_reply()), _LOST, _DONE),
    Way("reply cut in the middle", _plain(faults.cut()), _LOST, _DONE),
    Way("reply after the deadline", _plain(faults.delay(30)), _LOST, _LOST, impatient=True),
    Way("effect after the resume", faults.outlive, _LOST, _LOST, impatient=True, late=True),
    Way("reply sent twice", _plain(faults.twice()), _DONE),
    Way("500, not executed", _plain(faults.status(500, _BUSY)), _LOST, _DONE),
    Way("500, executed", _plain(faults.status(500, _BUSY, executes=True)), _LOST, _DONE),
    Way("503 of a gateway, executed", _plain(faults.status(503, executes=True)), _LOST, _DONE),
    Way("503 that says when", _plain(faults.status(503, _BUSY, retry_after=0.1)), _DONE),
    Way("429", _plain(faults.status(429, _BUSY, retry_after=0.1)), _DONE),
    Way("400", _plain(faults.status(400, {"detail": "bad"})), ("refused",)),
    Way("poll: reply dropped", _plain(faults.drop_reply()), _DONE, times=2, poll=True),
    Way("poll: reply cut", _plain(faults.cut()), _DONE, times=2, poll=True),
    Way("poll: sent twice", _plain(faults.twice()), _DONE, times=2, poll=True),
    Way("poll: 500, 500", _plain(faults.status(500, _BUSY)), _DONE, times=2, poll=True),
    Way("poll: 503, 503", _plain(faults.status(503, _BUSY)), _DONE, times=2, poll=True),
    Way("poll: 429", _plain(faults.status(429, _BUSY, retry_after=0.1)), _DONE, poll=True),
    Way("poll: 404", _plain(faults.status(404, {"detail": "gone"})), _LOST, _LOST, poll=True),
    Way("poll: never answered", _plain(faults.hang()), _LOST, _LOST, -1, True, True),
    Way("accepted, the user's fault", _plain(faults.fail("no", "user")), ("refused",)),
    Way(
        "accepted, failed half way",
        _plain(faults.fail("no", "server", applied=True)),
        _LOST,
        half_way=True,
    ),
)
BY_NAME = {way.name: way for way in WAYS}


def run_cell(kind: str, way_name: str, *, dedupes: bool = False) -> Result:
    """Run the cell in a folder of its own and leave nothing behind."""
    call, way, result, gate = BY_KIND[kind], BY_NAME[way_name], Result(), faults.Gate()
    with tempfile.TemporaryDirectory(prefix="once-") as name, served(dedupes=dedupes) as server:
        runs = Path(name) / "runs"
        setting = Setting(server.url, runs, dedupes)
        try:
            _carry_out(setting, call, way, gate, server, result)
        except Exception as error:
            result.flaws.append(f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")
        finally:
            gate.open()
    return result


def _carry_out(
    setting: Setting,
    call: Call,
    way: Way,
    gate: faults.Gate,
    server: ScriptedPolicyServer,
    result: Result,
) -> None:
    if call.kind == "load_state":
        # It takes an attempt that failed after its first state: at the third optimizer step.
        server.faults.add("optim_step", faults.fail("no", "user"), skip=2)
        attempt(setting, None)
        server.faults.clear()
        result.attempts += 1
    _arrange(call, way, gate, server)
    before = folder_in(setting.runs)
    impatient = replace(setting, patience=PATIENCE) if way.impatient else setting
    with _refusing(setting.runs, call, server) if way.refused else nullcontext():
        failed = attempt(impatient, before)
    result.attempts += 1
    run = folder_in(setting.runs)
    assert run is not None, failed
    met = server.faults.met
    if not way.late:
        server.faults.clear()
    result.told = _told(run, call, 2 if before else 1)
    result.flaws += _flaws(run, call, way, setting, server, result, failed, met)
    while failed is not None and result.attempts < 4:
        with opened_meanwhile(gate, server) if way.late else nullcontext():
            failed = attempt(setting, run)
        result.attempts += 1
        result.flaws += audit.counted(run, server, reaped=True)
        if way.late:
            result.flaws += took_effect(run, call, server)
    if failed is not None:
        result.flaws.append(f"not finished after {result.attempts} attempts: {failed}")
    result.flaws += audit.history(run, server)
    result.flaws += audit.fresh(run, server)
    result.flaws += audit.verified(run)


def _arrange(call: Call, way: Way, gate: faults.Gate, server: ScriptedPolicyServer) -> None:
    fault = way.fault(gate)
    if way.refused:
        return
    if way.poll:
        seen: list[object] = []

        def of_this_call(body: object) -> bool:
            """A poll of the first call of this kind that is not to pass."""
            request = body.get("request_id") if isinstance(body, dict) else None
            if server.promised(request) != call.endpoint:
                return False
            if request not in seen:
                seen.append(request)
            return seen.index(request) == call.skip

        server.faults.add(POLL, fault, times=way.times, match=of_this_call)
    else:
        server.faults.add(call.endpoint, fault, times=way.times, skip=call.skip)
    if way.late:
        keep_the_model(server, gate)


@contextmanager
def _refusing(runs: Path, call: Call, server: ScriptedPolicyServer) -> Iterator[None]:
    """The server takes no connection for a moment, once the call's intent is written."""
    intent = Place(f"{call.kind} intent", call.skip + 1, "after")
    met: list[Place] = []

    def watcher(now: Place, file: Path, record: Mapping[str, Any]) -> None:
        if now == intent:
            met.append(now)
            server.refuse(0.6)

    watch(runs, watcher)
    try:
        yield
    finally:
        unwatch(runs)
    assert met, f"{intent} was not met"


def _told(run: Path, call: Call, attempt: int) -> str:
    """The outcome of the call that met the fault: the first one of its kind that is not done, or
    the one that the fault was meant for."""
    states = [
        entry.state
        for entry in audit.calls(run)
        if entry.facts["kind"] == call.kind and entry.key.startswith(f"a{attempt}/")
    ]
    return next((state for state in states if state != "done"), "done")


def _flaws(
    run: Path,
    call: Call,
    way: Way,
    setting: Setting,
    server: ScriptedPolicyServer,
    result: Result,
    failed: str | None,
    met: int,
) -> Iterator[str]:
    if met == 0 and not way.refused:
        yield "the fault was not met"
    yield from audit.counted(run, server)
    yield from audit.verified(run)
    deduped = setting.dedupes and call.numbered
    ends = way.deduped if deduped and way.deduped else way.ends
    found = call.kind in ("publish", "save_state") and not way.half_way
    if result.told not in ends and not (found and result.told == "done" and "unknown" in ends):
        yield f"the ledger says {result.told}, not {' or '.join(ends)}"
    given_up = result.told != "done" and call.kind != "unload_model"
    if given_up != (failed is not None):
        yield f"the call is {result.told}, and the attempt ended so: {failed or 'finished'}"
