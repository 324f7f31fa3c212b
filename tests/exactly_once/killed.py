"""One cell of the kill matrix: a real `mtrl` is killed around one line that it writes, and
`mtrl train --resume` brings the run to its end."""

import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.exactly_once import audit
from tests.exactly_once.calls import BY_KIND, Result
from tests.exactly_once.late import keep_the_model, opened_meanwhile, took_effect
from tests.exactly_once.lines import Place, label
from tests.exactly_once.play import RESUME, Setting, served
from tests.exactly_once.zygote import Zygote

KILLED = -signal.SIGKILL
PRELUDE = Place("optim_step intent", 4, "after")
"""Where an attempt is killed whose successor is the one under test: three steps are committed,
the last state is that of the second, and an optimizer step was about to be sent."""


def run_cell(place: Place, zygote: Zygote, *, resumed: bool = False) -> Result:
    """Run the cell in a folder of its own. ``resumed``: the second attempt is killed there."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="once-") as name, served() as server:
        cwd = Path(name)
        try:
            _carry_out(cwd, place, zygote, server, result, resumed=resumed)
        except Exception as error:
            result.flaws.append(f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")
        if result.flaws and (cwd / "said").exists():
            result.flaws.append((cwd / "said").read_text()[-300:])
    return result


def _carry_out(
    cwd: Path,
    place: Place,
    zygote: Zygote,
    server: ScriptedPolicyServer,
    result: Result,
    *,
    resumed: bool,
) -> None:
    runs = cwd / "runs"
    setting = Setting(server.url, runs)
    if resumed:
        zygote.begin(cwd, setting, die=PRELUDE)
        code = zygote.run(cwd, *RESUME, str(runs), die=place)
        result.attempts += 1
    else:
        code = zygote.begin(cwd, setting, die=place)
    if code != KILLED:
        result.flaws.append(f"it was not killed: exit code {code}")
    result.attempts += 1
    _go_on(cwd, zygote, server, result)


def _go_on(cwd: Path, zygote: Zygote, server: ScriptedPolicyServer, result: Result) -> None:
    runs = cwd / "runs"
    run = audit.the_run(runs)
    result.told = next((e.state for e in reversed(audit.calls(run)) if e.open), "–")
    result.flaws += audit.counted(run, server, reaped=True)
    result.flaws += audit.verified(run)
    code = zygote.run(cwd, *RESUME, str(runs))
    result.attempts += 1
    if code not in (0, 5):
        result.flaws.append(f"the resumed run ended with exit code {code}")
    result.flaws += audit.counted(run, server, reaped=True)
    result.flaws += audit.history(run, server)
    result.flaws += audit.fresh(run, server)
    result.flaws += audit.verified(run)


# --- a call that takes effect after the kill ------------------------------------------------


def run_late(kind: str, zygote: Zygote) -> Result:
    """`mtrl` is killed while a call is on its way; the server executes it once the next attempt
    has trained on its own model, with the old model still there."""
    call, result, gate = BY_KIND[kind], Result(), faults.Gate()
    with tempfile.TemporaryDirectory(prefix="once-") as name, served() as server:
        cwd = Path(name)
        runs = cwd / "runs"
        setting = Setting(server.url, runs)
        if kind == "load_state":
            zygote.begin(cwd, setting, die=PRELUDE)
            result.attempts += 1
        server.faults.add(call.endpoint, faults.outlive(gate), skip=call.skip)
        keep_the_model(server, gate)
        try:
            with _killed_at(gate, runs):
                if kind == "load_state":
                    code = zygote.run(cwd, *RESUME, str(runs))
                else:
                    code = zygote.begin(cwd, setting)
            result.attempts += 1
            if code != KILLED:
                result.flaws.append(f"it was not killed: exit code {code}")
            with opened_meanwhile(gate, server):
                _go_on(cwd, zygote, server, result)
            result.flaws += took_effect(audit.the_run(runs), call, server)
        except Exception as error:
            result.flaws.append(f"{type(error).__name__}: {' '.join(str(error).split())[:600]}")
        finally:
            gate.open()
    return result


@contextmanager
def _killed_at(gate: faults.Gate, runs: Path) -> Iterator[None]:
    """Kill the run's process once a request is at the gate."""

    def kill() -> None:
        gate.wait_for(1, 60)
        os.kill(audit.pid(audit.the_run(runs)), signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        yield
    finally:
        killing.join()


# --- which places there are -----------------------------------------------------------------


def places(run: Path) -> Counter[str]:
    """Label → how many lines of it there are."""
    found: Counter[str] = Counter()
    for name in ("ledger.jsonl", "groups.jsonl", "commits.jsonl", "metrics.jsonl"):
        for record in audit.records(run / name):
            found[label(run / name, record)] += 1
    return found
