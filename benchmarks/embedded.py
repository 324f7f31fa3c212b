"""The embedded policy server from outside: what sampling, training and starting it cost.

    python -m benchmarks.embedded [--rounds N] [--json FILE]

The server runs as in `mtrl train`, a child process on a loopback port, and is spoken to with
mtrl's own client. CPU is the server process's (user and system, all threads), read before and
after; the best of some rounds counts.

- ``sample``: tokens a second of CPU with so many requests in flight, each of a 50-token prompt of
  its own and 64 tokens without a stop; the requests share nothing, the hardest case for a batch;
- ``train``: CPU of one step, forward/backward on 128 trajectories of 160 tokens and the optimizer,
  with the full model and with LoRA of rank 8;
- ``start``: CPU and wall from the start of the process until it serves, and its memory then and at
  the end;
- ``first step``: CPU, children included, and wall of ``mtrl train train.steps=1`` of the default
  experiment without its evaluation.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.facts import load, write
from mtrl_cli.rollout.ports import SampleRequest, SamplingParams
from mtrl_cli.servers.interface import AdamSpec, Capabilities, Datum, LossSpec, ModelSpec
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.servers.transport import Address

IN_FLIGHT = (1, 16, 64)
PROMPT, SAMPLED = 50, 64
TRAJECTORIES, LENGTH = 128, 160
BASE = "mtrl-tiny"
CAPABILITIES = Capabilities("immutable", True, True, True, True)
LOSS = LossSpec("importance_sampling", {})
ADAM = AdamSpec(1e-4, 0.9, 0.95, 1e-12, 0.0, 1.0)

Rows = list[dict[str, object]]


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def ignore(request_id: str) -> None:
    pass


def report(rows: Rows, what: str, value: float, unit: str) -> None:
    rows.append({"what": what, "value": value, "unit": unit})
    print(f"{what:<44} {value:>10.3g} {unit}; load {load()}", flush=True)


async def sample(client: TinkerService, policy: str, in_flight: int, vocab: int) -> int:
    """``in_flight`` requests at once; the number of tokens they sampled."""
    draw = np.random.default_rng(0)
    requests = [
        SampleRequest(
            policy, draw.integers(0, vocab, PROMPT).tolist(), SAMPLED, (), seed, SamplingParams()
        )
        for seed in range(in_flight)
    ]
    samples = await asyncio.gather(*map(client.sample, requests))
    return sum(len(one.tokens) for one in samples)


def trajectories(vocab: int) -> list[Datum]:
    draw = np.random.default_rng(1)
    made = []
    for _ in range(TRAJECTORIES):
        tokens = draw.integers(0, vocab, LENGTH + 1).astype(np.int32)
        logprobs = np.full(LENGTH, -6.0, np.float32)
        made.append(
            Datum(tokens[:-1], tokens[1:], logprobs, draw.normal(size=LENGTH).astype(np.float32))
        )
    return made


async def calls(server: EmbeddedServer, process: psutil.Process, rounds: int, rows: Rows) -> None:
    vocab = int(server.info["vocab"])
    address = Address.of(str(server.info["url"]), server.api_key)
    client = TinkerService(address, BASE, CAPABILITIES, connections=max(IN_FLIGHT))
    await client.connect()
    try:
        run = client.execute
        for name, rank in (("full", None), ("LoRA 8", 8)):
            model = await run(client.create_model(ModelSpec(BASE, rank, 32.0, 1)), ignore)
            policy = await run(client.publish(model, 1, f"bench/a1/{rank}"), ignore)
            if rank is None:
                for in_flight in IN_FLIGHT:
                    best = 0.0
                    for _ in range(rounds):
                        before = cpu_of(process)
                        tokens = sum(
                            [await sample(client, policy, in_flight, vocab) for _ in range(4)]
                        )
                        best = max(best, tokens / (cpu_of(process) - before))
                    report(rows, f"sample, {in_flight} in flight", best, "tokens/s of CPU")
            data, best = trajectories(vocab), float("inf")
            for turn in range(rounds):
                before = cpu_of(process)
                await run(client.forward_backward(model, 2 + 2 * turn, data, LOSS), ignore)
                await run(client.optim_step(model, 3 + 2 * turn, ADAM), ignore)
                best = min(best, cpu_of(process) - before)
            report(rows, f"train, {name}: a step", best, "s of CPU")
            await run(client.unload_model(model), ignore)
    finally:
        await client.close()


def measure(rounds: int) -> Rows:
    rows: Rows = []
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedServer(Path(folder) / "store", ready_seconds=300)
        since = time.monotonic()
        server.start()
        try:
            process = psutil.Process(int(server.info["pid"]))
            report(rows, "start: CPU", cpu_of(process), "s of CPU")
            report(rows, "start: wall", time.monotonic() - since, "s")
            report(rows, "start: memory", process.memory_info().rss / 2**20, "MiB")
            asyncio.run(calls(server, process, rounds, rows))
            report(rows, "end: memory", process.memory_info().rss / 2**20, "MiB")
        finally:
            server.stop()
        for name, value, unit in first_step(Path(folder)):
            report(rows, name, value, unit)
    return rows


def first_step(folder: Path) -> list[tuple[str, float, str]]:
    """`mtrl train` of one step, from its start to its end, the embedded server included."""
    command = [sys.executable, "-m", "mtrl_cli", "train", "train.steps=1", "eval.games=0"]
    root = Path(__file__).resolve().parents[1]
    environ = {**os.environ, "MTRL_HOME": str(folder / "home"), "PYTHONPATH": str(root)}
    cpu = _children_cpu()
    since = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")
    return [
        ("first step: CPU", _children_cpu() - cpu, "s of CPU"),
        ("first step: wall", time.monotonic() - since, "s"),
    ]


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    write(asked.json, "embedded", measure(asked.rounds))


if __name__ == "__main__":
    main()
