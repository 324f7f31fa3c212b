"""The real command line with the run itself replaced, for tests of signals, screens and exit codes.

``FAKE_RUN`` names the behaviour. Run as a script with the arguments of ``mtrl``.
"""

import asyncio
import os
import runpy
import subprocess
import sys
import threading
import time
from types import ModuleType
from typing import Any

from mtrl_cli.cli.running import blocked
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.events import (
    BorrowChanged,
    GroupFinished,
    GroupStarted,
    MemberFinished,
    TurnSampled,
)
from mtrl_cli.runs.stop import Stage
from mtrl_cli.training.events import Evaluated, PhaseStarted, RunFinished, RunStarted, StepFinished

RUN, FOLDER = "20261129-122135-a7aa", "runs/20261129-122135-a7aa"
POLICY = "mtrl://runs/a7aa/a1/step-000002"


def _finished(status: str, reason: str | None = None, quarantined: tuple[str, ...] = ()) -> Any:
    before = Evaluated("before", "base", -0.412, 0.011, 6000, 0.12)
    after = Evaluated("after", POLICY, -0.06, 0.012, 6000, 0.003)
    skipped = {"constant_reward": 3}
    return RunFinished(
        RUN, FOLDER, status, reason, 2, 16, 640, POLICY, before, after, skipped, quarantined
    )


def _group(observer: Any, group: int, name: str = "seed-1") -> None:
    observer(GroupStarted(group, name, 2, "base", 0))
    for member in range(2):
        observer(TurnSampled(group, member, 0, 20))
        observer(MemberFinished(group, member, "done", float(member), 1, 60, 0))


async def _steps(observer: Any) -> None:
    for step in range(2):
        observer(PhaseStarted("sampling", step))
        _group(observer, step)
        observer(GroupFinished(step, 0.5, "complete"))
        await asyncio.sleep(0.02)
        metrics = {"reward": 0.5, "groups": 1.0, "groups_trained": 1.0, "tokens_sampled": 40.0}
        observer(StepFinished(step + 1, 2, POLICY, metrics))


async def _until_stopped(observer: Any, stop: Any, drains: bool) -> Any:
    observer(PhaseStarted("sampling", 0))
    _group(observer, 0)
    print("READY", file=sys.stderr, flush=True)
    await stop.reached(Stage.DRAIN)
    if not drains:
        await stop.reached(Stage.STOP)
    await asyncio.sleep(0.3)
    return _finished("cancelled", stop.reason)


def _holds_up(seconds: float) -> None:
    time.sleep(seconds)


async def _run(experiment: Any, observer: Any, stop: Any) -> Any:
    kind = os.environ["FAKE_RUN"]
    observer(RunStarted(RUN, FOLDER, "blackjack", 2, "local", {"random": -0.39}))
    match kind:
        case "finish":
            await _steps(observer)
        case "quarantine":
            await _steps(observer)
            return _finished("finished", None, ("sandbox sb-1: e2b sandbox kill sb-1",))
        case "drain":
            return await _until_stopped(observer, stop, drains=True)
        case "stop":
            return await _until_stopped(observer, stop, drains=False)
        case "blocked":
            observer(PhaseStarted("sampling", 0))
            for key, state in (("a", "held"), ("b", "requested"), ("c", "released")):
                observer(BorrowChanged(key, "sandbox", state))
            await asyncio.sleep(0.3)  # the screen is drawn
            print("READY", file=sys.stderr, flush=True)
            time.sleep(60)  # noqa: ASYNC251 - what a broken environment does to the event loop
        case "held-up":
            observer(PhaseStarted("sampling", 0))
            await asyncio.sleep(0.1)
            _holds_up(float(os.environ["SECONDS"]))
            await _steps(observer)
        case "breaks":
            observer(PhaseStarted("sampling", 0))
            await stop.reached(Stage.DRAIN)
            raise ZeroDivisionError("division by zero")
        case "hanging-thread":
            threading.Thread(target=time.sleep, args=(60,)).start()
        case "fail-first" if experiment.seed == 1:
            raise MtrlError("server http://h:1 refused")
        case "fail-first":
            await _steps(observer)
        case "chatty":
            print("printed by the environment", flush=True)
            subprocess.run(["echo", "printed by a child"], check=True)  # noqa: ASYNC221
        case "not-finite":
            figures = {"reward": 0.5, "loss": float("nan"), "kl": float("inf")}
            observer(StepFinished(1, 2, POLICY, figures))
        case "fail":
            raise MtrlError("server http://h:1 refused: \x1b[31mno\x1b[0m")
        case "usage":
            raise UsageError("task.entrypoint: no class 'X'")
        case "bug":
            raise ExceptionGroup("workers", [ZeroDivisionError("division by zero")])
        case "broken-screen":
            observer(StepFinished(1, 2, POLICY, {"reward": "not a number"}))  # type: ignore[dict-item]
        case "denied":
            raise PermissionError(13, "Permission denied", "/root/runs")
        case "secret":
            raise MtrlError(f"server said: {os.environ['MTRL_API_KEY']} is not welcome")
        case "hostile":
            observer(PhaseStarted("sampling", 0))
            _group(observer, 0, "\x1b]0;owned\x07\x1b[2Jseed")
            await asyncio.sleep(0.6)
            observer(GroupFinished(0, 0.5, "complete"))
            observer(StepFinished(1, 2, "x/\x1b[31mred", {"reward": 0.5}))
    return _finished("finished")


async def train(experiment: Any, config_yaml: str, *, observer: Any, stop: Any, **_: Any) -> Any:
    return await _run(experiment, observer, stop)


async def play(
    experiment: Any, config_yaml: str, *, groups: int, observer: Any, stop: Any, **_: Any
) -> Any:
    observer(RunStarted(RUN, FOLDER, "blackjack", 0, "local", {}))
    observer(PhaseStarted("sampling"))
    for group in range(groups):
        _group(observer, group, f"seed-{group}")
        observer(GroupFinished(group, 0.5, "complete"))
    return RunFinished(RUN, FOLDER, "finished", None, 0, 2 * groups, 640, "base", None, None, {})


if "PATIENCE" in os.environ:
    blocked.PATIENCE = float(os.environ["PATIENCE"])

for name, function in (("run", train), ("play", play)):
    module = ModuleType(f"mtrl_cli.training.{name}")
    setattr(module, function.__name__, function)
    sys.modules[module.__name__] = module

if __name__ == "__main__":
    runpy.run_module("mtrl_cli", run_name="__main__", alter_sys=True)
