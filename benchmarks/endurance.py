"""A long training run under faults: is anything lost, leaked or left to grow?

    python -m benchmarks.endurance [--path embedded|e2b] [--episodes N] [--json FILE]

`mtrl train`'s own loop trains blackjack on the embedded policy server with 160 episodes a step, in
process or in sandboxes of the E2B emulator, while 1 % of every kind of operation meets a fault
(see `endurance_faults` and `endurance_program`): replies lost, cut, late or broken, 429 and 500,
games that raise, sandboxes that vanish. The services are a process of their own, so what is
measured is the run's process alone; the server's memory is told beside it.

At each tenth: resident memory and open files of the run's process, its asyncio tasks and threads
at the end of a step, and the server's memory. Before and after the run: the same at rest. At the
end: `mtrl verify`, the ledger, what the emulator counts, and what the run says is left. Exit code 1
when any of it is not as it should be.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtrl_cli.rollout.events import MemberFinished

A_STEP = 160
"""Episodes of a step: 20 groups of 8."""
TENTHS = 10
GROWTH = 1.10
"""Memory at the end over memory at the second tenth: what is allowed."""

SPARED = {"files": 32, "tasks": 0, "threads": 0}
"""What a process may keep after a run, more than before: the idle connections that E2B's SDK keeps
for the life of a process (20 a host, however many runs)."""

COMMON = (
    "server=local", "server.sample_timeout=60", "env.check_seeds=false", "eval.games=0",
    "train.kl=0.1", "train.kl_end_step=null", "train.checkpoint_every=10", "group.size=8",
    "group.per_step=20", "group.max_refills=4",
)  # fmt: skip
PATHS: Mapping[str, Sequence[str]] = {
    "embedded": ("env.entrypoint=benchmarks.endurance_env:FlakyBlackjack",),
    "e2b": (
        "env=e2b", "env.entrypoint=benchmarks.endurance_program:FlakyProgram",
        "env.e2b.files=[mtrl_cli.tasks.blackjack.game,mtrl_cli.tasks.blackjack.text,"
        "mtrl_cli.tasks.blackjack.program]",
        "env.e2b.per_second=1000", "env.e2b.at_once=48", "run.concurrency=48",
        "env.e2b.settles=5", "env.open_timeout=20",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """What the run's process holds at the end of a step."""

    step: int
    episodes: int
    """Finished ones, refills included."""
    seconds: float
    mib: float
    files: int
    tasks: int
    threads: int
    server_mib: float


class Sampler:
    """Observes the run from inside its process."""

    def __init__(self, steps: int, server: int) -> None:
        self._every = max(1, steps // TENTHS)
        self._server = server
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        self.stops: Counter[str] = Counter()

    def __call__(self, event: Any) -> None:
        if isinstance(event, MemberFinished):
            self.stops[str(event.stop)] += 1
        elif type(event).__name__ == "StepFinished" and (
            event.step % self._every == 0 or event.step == event.steps
        ):
            gc.collect()
            sample = Sample(
                step=event.step,
                episodes=self.stops.total(),
                seconds=round(time.monotonic() - self._began, 1),
                mib=resident(os.getpid()),
                **asdict(held_now()),
                server_mib=resident(self._server),
            )
            self.samples.append(sample)
            print(row(sample), file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Held:
    """What a process holds that must not grow."""

    files: int
    tasks: int
    threads: int


def held_now() -> Held:
    return Held(
        files=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - as cheap as it gets
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
    )


async def start_pool() -> None:
    """Start every thread of asyncio's pool, which has no fewer from then on: one that begins when
    two calls first meet, early or late, would look like a leak."""
    workers = min(32, (os.cpu_count() or 1) + 4)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(workers))
    together = threading.Barrier(workers)
    await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(workers)))


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def play(path: str, steps: int, folder: Path, services: Mapping[str, Any]) -> dict[str, Any]:
    """Train in this process; what was sampled, and how the run ended."""
    os.environ.update(services["environ"])
    from mtrl_cli.config.compose import compose
    from mtrl_cli.config.resolve import resolve
    from mtrl_cli.runs.stop import StopRequest
    from mtrl_cli.training.events import RunFinished
    from mtrl_cli.training.run import train

    server = (f'server.base_url="{services["server"]}"', f"server.api_key={services['key']}")
    size = (f"train.steps={steps}", f'run.dir="{folder}/runs"')
    composed = compose("blackjack", [*COMMON, *PATHS[path], *server, *size])
    sampler = Sampler(steps, services["pid"])

    async def carry_out() -> tuple[Held, RunFinished, Held]:
        await start_pool()
        made, before = resolve(composed), held_now()
        finished = await train(made, composed.yaml, observer=sampler, stop=StopRequest())
        return before, finished, held_now()

    before, finished, after = asyncio.run(carry_out())
    return {
        "run": finished.folder,
        "status": finished.status,
        "steps": finished.steps,
        "episodes": finished.episodes,
        "skipped": dict(finished.skipped),
        "quarantined": list(finished.quarantined),
        "stops": dict(sampler.stops),
        "samples": [asdict(sample) for sample in sampler.samples],
        "before": asdict(before),
        "after": asdict(after),
    }


@contextmanager
def services_in(folder: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The services, in a process of their own; what they have counted is there afterwards."""
    command = [sys.executable, "-m", "benchmarks.endurance_faults", str(folder / "store")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        counted: list[dict[str, Any]] = []
        try:
            yield json.loads(process.stdout.readline()), counted
        finally:
            told, _ = process.communicate(timeout=60)
            counted.append(json.loads(told))


def endure(path: str, episodes: int) -> dict[str, Any]:
    """One run of at least so many episodes, and everything that was looked at."""
    from mtrl_cli.runs.ledger import read_ledger

    steps = -(-episodes // A_STEP)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with services_in(folder) as (services, counted):
            command = [sys.executable, "-m", "benchmarks.endurance", "--play", path]
            arguments = [str(steps), str(folder), json.dumps(services)]
            played = subprocess.run(
                [*command, *arguments], stdout=subprocess.PIPE, text=True, check=False
            )
        if played.returncode:
            raise SystemExit(played.returncode)
        result: dict[str, Any] = json.loads(played.stdout)
        entries = list(read_ledger(Path(result["run"]) / "ledger.jsonl"))
        verify = [sys.executable, "-m", "mtrl_cli", "verify", "last"]
        verified = subprocess.run(
            [*verify, "--runs-dir", str(folder / "runs")],
            capture_output=True,
            text=True,
            check=False,
        )
    return {
        "path": path,
        **result,
        **counted[0],
        "ledger": dict(Counter(f"{entry.entry} {entry.state}" for entry in entries)),
        "verify": verified.returncode,
        "verify_says": (verified.stdout + verified.stderr).splitlines()[:5],
    }


def faults_of(result: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it should be."""
    if result["status"] != "finished":
        yield f"the run is {result['status']}"
    if result["verify"]:
        yield f"mtrl verify: {result['verify_says']}"
    if result["quarantined"]:
        yield f"quarantined: {result['quarantined']}"
    ends = {"call done", "call refused", "borrow released"}
    if left := {name: count for name, count in result["ledger"].items() if name not in ends}:
        yield f"in the ledger: {left}"
    box = result["sandboxes"]
    if box["live"] or box["created"] != box["killed"] + box["vanished"]:
        yield f"sandboxes: {box}"
    samples = result["samples"]
    settled, last = samples[min(1, len(samples) - 1)], samples[-1]
    if last["mib"] > GROWTH * settled["mib"]:
        yield f"memory grew from {settled['mib']} to {last['mib']} MiB"
    half = len(samples) // 2
    for what, kept in SPARED.items():
        before, after = result["before"][what], result["after"][what]
        if after > before + kept:
            yield f"{what} at rest grew from {before} to {after}"
        # During the run they follow what is in flight: a leak raises the least that is ever held.
        if len(samples) >= TENTHS:
            early = max(sample[what] for sample in samples[:half])
            late = min(sample[what] for sample in samples[half:])
            if late > early:
                yield f"{what} grew from at most {early} to at least {late}"


HEAD = "| step | episodes | wall | memory | files | tasks | threads | server's memory |"


def row(sample: Sample) -> str:
    return (
        f"| {sample.step} | {sample.episodes:,} | {sample.seconds:,.0f} s | {sample.mib:.1f} MiB"
        f" | {sample.files} | {sample.tasks} | {sample.threads} | {sample.server_mib:.1f} MiB |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", choices=sorted(PATHS), default="embedded")
    parser.add_argument("--episodes", type=int, default=20_480)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--play", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        path, steps, folder, services = arguments.play
        print(json.dumps(play(path, int(steps), Path(folder), json.loads(services))))
        return 0
    result = endure(arguments.path, arguments.episodes)
    result["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}"
    if arguments.json:
        arguments.json.write_text(json.dumps(result))
    print(f"{arguments.path}: {result['episodes']:,} episodes trained or skipped in"
          f" {result['steps']} steps; ended as {result['stops']}")  # fmt: skip
    print(f"faults met: {result['met']}\nledger: {result['ledger']}")
    print(f"sandboxes: {result['sandboxes']}\nverify: {'; '.join(result['verify_says'])}\n{HEAD}")
    print("|---|---|---|---|---|---|---|---|")
    for sample in result["samples"]:
        print(row(Sample(**sample)))
    for when in ("before", "after"):
        print(f"{when} the run: {result[when]}")
    wrong = list(faults_of(result))
    print("\n".join(f"WRONG: {text}" for text in wrong) or "nothing leaked, nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
