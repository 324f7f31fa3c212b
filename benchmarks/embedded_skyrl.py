"""The embedded server and SkyRL tx beside each other: models of the same size, one client, a CPU.

    python -m benchmarks.embedded_skyrl [--rounds N] [--json FILE] [SkyRL's settings]

SkyRL 0.4.0 needs an environment of its own (2 GB); its install is in the docstring of
tests/peers/test_skyrl.py, and MTRL_SKYRL4_PYTHON names its interpreter when it is not in
~/.venvs/skyrl4. Both servers run at the same time and are measured in turns, over HTTP by mtrl's
own client, with the same requests. Both compute in float32, with random (SkyRL) or packaged
(mtrl) weights of the same size and LoRA of rank 8 on all matrices. CPU is that of all processes
of the server, user and system; CPU and wall are each the best of the rounds.

- ``first answer``: from the start of the process until a model is created, published, and one
  request of 64 tokens is answered; for SkyRL without and with what JAX has compiled before;
- ``sample``: so many requests at once, each of 50 prompt tokens of its own and 64 sampled ones;
- ``train``: forward/backward on 128 trajectories of 160 tokens, and the optimizer;
- ``first``: the wall of the first such call less the best one: what XLA compiles for its shape
  (less what it had compiled for the first answer);
- ``memory``: resident, all processes of the server, after the first answer and at the end.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from benchmarks.embedded import (
    ADAM,
    BASE,
    CAPABILITIES,
    IN_FLIGHT,
    LOSS,
    Rows,
    ignore,
    sample,
    trajectories,
)
from benchmarks.facts import load, write
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.interface import Capabilities, ModelSpec
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.servers.tinker.service import TinkerService
from tests.peers.venvs import end_session, interpreter

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "mtrl_cli" / "assets" / "mtrl-tiny" / "tokenizer.json"
SERVER = ROOT / "tests" / "peers" / "skyrl_server.py"
LIVE = Capabilities("live", False, True, False, False)
COLD, WARM = "first answer, nothing compiled", "first answer"
RANK, VOCABULARY = 8, 636
START_SECONDS = 300
REPEATS = 4  # batches a round; a tick of the CPU clock is 10 ms


@dataclass
class Served:
    """A server that runs, and what has been measured of it: name → value."""

    name: str
    pid: int
    client: TinkerService
    base: str
    since: float
    model: str = ""
    policy: str = ""
    sequence: int = 0
    found: dict[str, float] = field(default_factory=dict)

    def processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]

    def cpu(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return float(sum(each.user + each.system for each in times))

    def memory(self) -> float:
        return float(sum(process.memory_info().rss for process in self.processes()) / 2**20)

    def least(self, what: str, value: float) -> None:
        self.found[what] = min(value, self.found.get(what, float("inf")))

    def next(self) -> int:
        self.sequence += 1
        return self.sequence


async def begin(server: Served, what: str) -> None:
    """From an address to the first answer."""
    run, client = server.client.execute, server.client
    await client.connect()
    spec = ModelSpec(server.base, RANK, 32.0, 1)
    server.model = await run(client.create_model(spec), ignore)
    server.policy = await run(client.publish(server.model, server.next(), "bench/a1/0"), ignore)
    assert await sample(client, server.policy, 1, VOCABULARY) == 64
    server.found[what] = time.monotonic() - server.since
    server.found[f"{what}: CPU"] = server.cpu()
    server.found["memory after it"] = server.memory()


async def measured(server: Served, what: str, call: Callable[[], Awaitable[None]], n: int) -> None:
    if f"{what}: first" not in server.found:
        since = time.monotonic()
        await call()
        server.found[f"{what}: first"] = time.monotonic() - since
    cpu, since = server.cpu(), time.monotonic()
    for _ in range(n):
        await call()
    server.least(f"{what}: CPU", (server.cpu() - cpu) / n)
    server.least(f"{what}: wall", (time.monotonic() - since) / n)


async def one_round(server: Served) -> None:
    client, run = server.client, server.client.execute
    data = trajectories(VOCABULARY)

    async def drawn(requests: int) -> None:
        assert await sample(client, server.policy, requests, VOCABULARY) == 64 * requests

    async def step() -> None:
        await run(client.forward_backward(server.model, server.next(), data, LOSS), ignore)
        await run(client.optim_step(server.model, server.next(), ADAM), ignore)

    for requests in IN_FLIGHT:
        await measured(server, f"sample {requests}", partial(drawn, requests), REPEATS)
    await measured(server, "train", step, 1)


@contextmanager
def embedded(folder: Path) -> Iterator[Served]:
    since = time.monotonic()
    server = EmbeddedServer(folder / "store", ready_seconds=START_SECONDS)
    server.start()
    try:
        address = Address.of(str(server.info["url"]), server.api_key)
        client = TinkerService(address, BASE, CAPABILITIES, connections=max(IN_FLIGHT))
        yield Served("mtrl", int(server.info["pid"]), client, BASE, since)
    finally:
        server.stop()


@contextmanager
def skyrl(folder: Path, python: str, backend: Mapping[str, int]) -> Iterator[Served]:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
    }
    model = folder / "model"
    if not model.exists():
        made = [python, str(ROOT / "benchmarks" / "embedded_qwen3.py"), str(TOKENIZER), str(model)]
        said = subprocess.run(made, check=True, env=environment, capture_output=True, text=True)
        print(f"SkyRL's model: {said.stdout.strip()} parameters", flush=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    work = Path(tempfile.mkdtemp(dir=folder))
    command = [str(SERVER), str(model), str(work), str(port), json.dumps(backend)]
    log = work / "log"
    since = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            [python, *command], stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        while "Starting background engine" not in log.read_text():
            if process.poll() is not None or time.monotonic() > since + START_SECONDS:
                raise SystemExit(f"SkyRL did not start: {log.read_text()[-3000:]}")
            time.sleep(0.1)
        address = Address.of(f"http://127.0.0.1:{port}", "tml-none")
        client = TinkerService(
            address, str(model), LIVE, connections=max(IN_FLIGHT), sample_timeout=300.0
        )
        yield Served("SkyRL", process.pid, client, str(model), since)
    finally:
        end_session(process)


async def compare(python: str, rounds: int, backend: Mapping[str, int]) -> list[Served]:
    """Both servers with what was found of them, mtrl's first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with skyrl(folder, python, backend) as cold:
            await begin(cold, COLD)
            await cold.client.close()
        with skyrl(folder, python, backend) as peer:
            await begin(peer, WARM)
            with embedded(folder) as own:
                await begin(own, WARM)
                for done in range(rounds):
                    await one_round(own)
                    await one_round(peer)
                    print(f"round {done + 1} of {rounds}; load {load()}", flush=True)
                for server in (own, peer):
                    server.found["memory at the end"] = server.memory()
                    await server.client.close()
        peer.found |= cold.found
        return [own, peer]


def figures(server: Served) -> dict[str, tuple[float, str]]:
    """Row → value and unit."""
    found = server.found
    rows: dict[str, tuple[float, str]] = {}
    for requests in IN_FLIGHT:
        name, tokens = f"sample {requests}", 64 * requests
        rows[name] = tokens / found[f"{name}: CPU"], "tokens/s of CPU"
        rows[f"{name}, wall"] = tokens / found[f"{name}: wall"], "tokens/s"
        rows[f"{name}, first"] = found[f"{name}: first"] - found[f"{name}: wall"], "s more"
    rows["train"] = found["train: CPU"], "s of CPU"
    rows["train, wall"] = found["train: wall"], "s"
    rows["train, first"] = found["train: first"] - found["train: wall"], "s more"
    for what in (COLD, WARM):
        nearest = what if what in found else WARM
        rows[what] = found[nearest], "s"
        rows[f"{what}, CPU"] = found[f"{nearest}: CPU"], "s of CPU"
    for what in ("memory after it", "memory at the end"):
        rows[what] = found[what], "MiB"
    return rows


def table(own: Served, peer: Served) -> Rows:
    print(f"{'':<40} {'mtrl':>10} {'SkyRL tx':>10}")
    rows: Rows = []
    theirs = figures(peer)
    for what, (value, unit) in figures(own).items():
        rows.append({"what": what, "mtrl": value, "skyrl": theirs[what][0], "unit": unit})
        print(f"{what:<40} {value:>10.4g} {theirs[what][0]:>10.4g} {unit}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    told = "of SkyRL's settings, in sequences; 0: as many as there are"
    parser.add_argument("--train-micro-batch-size", type=int, default=64, help=told)
    parser.add_argument("--sample-max-num-sequences", type=int, default=16, help=told)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args()
    if not (python := interpreter("skyrl4")).is_file():
        parser.error(f"no SkyRL at {python}: see the docstring of tests/peers/test_skyrl.py")
    names = ("train_micro_batch_size", "sample_max_num_sequences")
    backend = {name: getattr(asked, name) for name in names}
    own, peer = asyncio.run(compare(str(python), asked.rounds, backend))
    write(asked.json, "embedded_skyrl", table(own, peer))


if __name__ == "__main__":
    main()
