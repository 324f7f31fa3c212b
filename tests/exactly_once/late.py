"""A call whose effect comes after the next attempt has begun."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.exactly_once import audit
from tests.exactly_once.calls import Call


def keep_the_model(server: ScriptedPolicyServer, gate: faults.Gate) -> None:
    """Lose every unloading while a call waits at the gate: it must find its model."""
    server.faults.add(
        "unload_model", faults.drop_request(), times=-1, match=lambda body: gate.holds
    )


@contextmanager
def opened_meanwhile(gate: faults.Gate, server: ScriptedPolicyServer) -> Iterator[None]:
    """Open the gate once an attempt has trained on a model of its own."""
    seen, ended = server.applied("forward_backward"), threading.Event()

    def watch() -> None:
        while server.applied("forward_backward") == seen and not ended.is_set():
            time.sleep(0.005)
        gate.open()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def took_effect(run: Path, call: Call, server: ScriptedPolicyServer) -> Iterator[str]:
    """The late call was executed once, beside those that the ledger knows to be done."""
    done = Counter(e.facts["kind"] for e in audit.calls(run) if e.state == "done")[call.kind]
    deadline = time.monotonic() + 5
    while server.applied(call.endpoint) <= done and time.monotonic() < deadline:
        time.sleep(0.01)
    if (applied := server.applied(call.endpoint)) != done + 1:
        yield f"{call.endpoint} took effect {applied} times, with {done} that are done"
