"""mtrl against SkyRL's Tinker server on the CPU: 0.3.0 (JSON) and 0.4.0 (protobuf).

Each version needs an environment of its own (2 GB; JAX, torch, transformers). On Python 3.11:

    for v in 3 4; do
      python3.11 -m venv ~/.venvs/skyrl$v
      ~/.venvs/skyrl$v/bin/pip install torch==2.13.0 jax==0.10.2 flax==0.12.8 optax==0.2.8 \\
        transformers==5.16.1 tokenizers==0.23.3 peft==0.18.1 sqlmodel==0.0.50 datasets \\
        safetensors rich typer cloudpathlib hf_transfer zstandard xxhash pillow accelerate \\
        aiohttp psutil loguru "fastapi[standard]" "sqlalchemy[asyncio]" aiosqlite asyncpg \\
        psycopg2-binary
    done
    ~/.venvs/skyrl3/bin/pip install "tinker==0.16.1"
    ~/.venvs/skyrl3/bin/pip install --no-deps --ignore-requires-python skyrl==0.3.0
    ~/.venvs/skyrl4/bin/pip install "tinker==0.25.0"
    ~/.venvs/skyrl4/bin/pip install --no-deps --ignore-requires-python skyrl==0.4.0

MTRL_SKYRL3_PYTHON and MTRL_SKYRL4_PYTHON name their interpreters when they are elsewhere;
MTRL_SKYRL_CACHE keeps what JAX compiled (the first run takes minutes more). Then:

    python -m pytest -m peer -rs tests/peers/test_skyrl.py
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import Sample, SampleRequest, SamplingParams
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.interface import AdamSpec, Capabilities, Datum, LossSpec, ModelSpec
from mtrl_cli.servers.tinker.service import TinkerService
from tests.peers.venvs import end_session, interpreter

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
TOKENIZER = REPOSITORY / "mtrl_cli" / "assets" / "mtrl-tiny" / "tokenizer.json"
VERSIONS = {"3": "0.3.0", "4": "0.4.0"}
PARITY = 1e-4
START_SECONDS = 300
END = 2  # any fixed id does as a stop id here
PROMPT = [5, 6, 7, 8, 9] * 10

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Server:
    version: str
    url: str
    model: str
    log: Path


@pytest.fixture(scope="module", params=VERSIONS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    short = str(request.param)
    python = str(interpreter(f"skyrl{short}"))
    if not Path(python).exists():
        pytest.skip(f"no skyrl {VERSIONS[short]} at {python}")
    folder = tmp_path_factory.mktemp(f"skyrl{short}")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("MTRL_SKYRL_CACHE", str(folder / "jax")),
    }
    model = folder / "model"
    made = [python, str(HERE / "skyrl_model.py"), str(TOKENIZER), str(model)]
    subprocess.run(made, check=True, env=environment, capture_output=True, timeout=300)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [python, str(HERE / "skyrl_server.py"), str(model), str(folder / "work"), str(port)],
            stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
    try:
        _until_started(process, log)
        yield Server(VERSIONS[short], f"http://127.0.0.1:{port}", str(model), log)
    finally:
        end_session(process)


def _until_started(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "Starting background engine" not in log.read_text():
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.5)


# --- calls ----------------------------------------------------------------------------------


def client_of(server: Server) -> TinkerService:
    return TinkerService(
        Address.of(server.url, "tml-none"),
        server.model,
        Capabilities("live", False, True, False, False),
        sample_timeout=300.0,
        training_timeout=600.0,
    )


def ignore(request_id: str) -> None:
    return None


async def turns(client: TinkerService, policy: str, seed: int = 0) -> list[Sample]:
    """A batch of one fixed size, so that JAX compiles it once."""
    requests = [
        SampleRequest(policy, PROMPT, 16, (END,), seed + index, SamplingParams())
        for index in range(8)
    ]
    return await asyncio.gather(*map(client.sample, requests))


def data_of(samples: list[Sample], advantage: float = 1.0) -> list[Datum]:
    made = []
    for sample in samples:
        full = np.array([*PROMPT, *sample.tokens], dtype=np.int32)
        length, sampled = len(full) - 1, len(sample.tokens)
        logprobs, advantages = np.zeros((2, length), dtype=np.float32)
        logprobs[-sampled:], advantages[-sampled:] = sample.logprobs, advantage
        made.append(Datum(full[:-1], full[1:], logprobs, advantages))
    return made


def drift(logprobs: Any, data: list[Datum]) -> float:
    """The largest difference of sampler and trainer over the sampled tokens."""
    return max(
        float(np.abs(trainer - datum.logprobs)[datum.advantages != 0].max())
        for trainer, datum in zip(logprobs, data, strict=True)
    )


ADAM = AdamSpec(4e-3, 0.9, 0.95, 1e-8, 0.0, 1.0)
LOSS = LossSpec("importance_sampling", {})


async def test_the_calls_of_a_step(server: Server) -> None:
    client = client_of(server)
    await client.connect()
    try:
        run = client.execute
        assert client.capabilities.cancels is False
        model = await run(client.create_model(ModelSpec(server.model, 8, 32.0, 1)), ignore)
        first = await run(client.publish(model, 1, "run/a1/step-000000"), ignore)
        samples = await turns(client, first)
        for sample in samples:
            assert sample.stop_reason == ("stop" if sample.tokens[-1] == END else "length")
            assert len(sample.tokens) == len(sample.logprobs) <= 16
        data = data_of(samples)
        result = await run(client.forward_backward(model, 2, data, LOSS), ignore)
        assert drift(result.logprobs, data) <= PARITY
        form = client.forward_backward(model, 3, data, LOSS).content_type
        assert ("protobuf" in form) == (server.version == "0.4.0")
        await run(client.optim_step(model, 3, ADAM), ignore)
        second = await run(client.publish(model, 4, "run/a1/step-000001"), ignore)
        assert first != second
        after = data_of(await turns(client, second, seed=100))
        again = await run(client.forward_backward(model, 5, after, LOSS), ignore)
        assert drift(again.logprobs, after) <= PARITY
        await run(client.optim_step(model, 6, ADAM), ignore)
        prompt = await client.logprobs(second, PROMPT)
        assert np.isnan(prompt[0])
        assert (prompt[1:] < 0).all()
        state = await run(client.save_state(model, 7, "run/a1/state"), ignore)
        loaded = await run(client.create_model(ModelSpec(server.model, 8, 32.0, 1)), ignore)
        await run(client.load_state(loaded, 1, state), ignore)
        await run(client.unload_model(loaded), ignore)
        await run(client.unload_model(model), ignore)
    finally:
        await client.close()


async def test_an_old_name_samples_with_the_live_weights(server: Server) -> None:
    """Why its snapshots are declared `live`: nothing may be in flight over an optimizer step."""
    client = client_of(server)
    await client.connect()
    try:
        run = client.execute
        model = await run(client.create_model(ModelSpec(server.model, 8, 32.0, 1)), ignore)
        old = await run(client.publish(model, 1, "old"), ignore)
        before = data_of(await turns(client, old))
        await run(client.forward_backward(model, 2, before, LOSS), ignore)
        await run(client.optim_step(model, 3, AdamSpec(0.05, 0.9, 0.95, 1e-8, 0, 0)), ignore)
        after = data_of(await turns(client, old))
        result = await run(client.forward_backward(model, 4, after, LOSS), ignore)
        assert drift(result.logprobs, after) <= PARITY  # the trained weights, not the old ones
        await run(client.optim_step(model, 5, ADAM), ignore)
        await run(client.unload_model(model), ignore)
    finally:
        await client.close()


async def test_two_tenants(server: Server) -> None:
    """One leaves in the middle; the other trains on, and its slots are free again."""
    one, two = client_of(server), client_of(server)
    await one.connect()
    await two.connect()
    try:
        spec = ModelSpec(server.model, 8, 32.0, 1)
        first = await one.execute(one.create_model(spec), ignore)
        second = await two.execute(two.create_model(spec), ignore)
        third = client_of(server)
        await third.connect()
        with pytest.raises(MtrlError, match="Maximum number of LoRA adapters"):
            await third.execute(third.create_model(spec), ignore)
        policy = await two.execute(two.publish(second, 1, "two"), ignore)
        await one.execute(one.unload_model(first), ignore)
        await one.close()
        data = data_of(await turns(two, policy))
        result = await two.execute(two.forward_backward(second, 2, data, LOSS), ignore)
        assert drift(result.logprobs, data) <= PARITY
        await two.execute(two.optim_step(second, 3, ADAM), ignore)
        freed = await third.execute(third.create_model(spec), ignore)
        await third.execute(third.unload_model(freed), ignore)
        await third.close()
        await two.execute(two.unload_model(second), ignore)
    finally:
        await one.close()
        await two.close()


# --- runs -----------------------------------------------------------------------------------


STEPS = 12


def train(server: Server, folder: Path, seed: int) -> Path:
    """`mtrl train` on the brevity task; the run's folder."""
    task = HERE / "brief.py"
    experiment = folder / "brief.yaml"
    experiment.write_text(f"""
defaults: [config, override server: tinker, _self_]
name: brief
server:
  base_url: {server.url}
  api_key: tml-none
  base_model: {server.model}
  tokenizer: mtrl-tiny
  context: 1024
  sample_timeout: 600
task: {{name: brief, entrypoint: "{task}:BriefTask", unfinished_reward: -1.0}}
env: {{entrypoint: "{task}:BriefEnvironment"}}
group: {{size: 8, per_step: 8}}
budget: {{turn_tokens: 16, trajectory_tokens: 128, max_turns: 1, deadline: 900}}
train: {{steps: {STEPS}, learning_rate: 1.0e-4, lora_rank: 8, kl: 0.0, checkpoint_every: 0}}
eval: {{games: 0}}
run: {{dir: "{folder / "runs"}"}}
""")
    command = [sys.executable, "-m", "mtrl_cli", "train", f"conf={experiment}", f"seed={seed}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    [run] = [path for path in (folder / "runs").iterdir() if not path.is_symlink()]
    return run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_learns(server: Server, tmp_path: Path, seed: int) -> None:
    run = train(server, tmp_path, seed)
    steps = lines(run / "metrics.jsonl")
    policies = [commit["policy"] for commit in lines(run / "commits.jsonl")]
    assert len(set(policies)) >= 10
    assert len(policies) == STEPS + 1
    # Each group was sampled under the policy of the step that it was admitted for, although an
    # old name samples with the live weights: what was sampled is what the trainer computes.
    parity = [step["parity_max"] for step in steps if "parity_max" in step]
    assert len(parity) >= 10
    assert max(parity) <= PARITY
    admitted = [line for line in lines(run / "groups.jsonl") if line["state"] == "admitted"]
    assert [line["group"] for line in admitted] == list(range(8 * STEPS))
    assert [line["policy"] for line in admitted] == [policies[n // 8] for n in range(8 * STEPS)]
    calls = [line for line in lines(run / "ledger.jsonl") if line.get("kind") == "optim_step"]
    assert len(calls) >= 10
    first, last = (fmean(step["reward"] for step in part) for part in (steps[:3], steps[-3:]))
    error = sum(step["reward_se"] ** 2 for step in (*steps[:3], *steps[-3:])) ** 0.5 / 3
    print(f"{server.version} seed {seed}: {first:.3f} to {last:.3f}, s.e. {error:.3f}")
    assert last - first >= 4 * error


async def test_a_snapshot_is_found_in_the_list_and_its_weights_are_downloaded(
    server: Server, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    client = client_of(server)
    await client.connect()
    try:
        spec = ModelSpec(server.model, lora_rank=8, lora_alpha=16.0, seed=1)
        model = await client.execute(client.create_model(spec), ignore)
        try:
            uri = await client.execute(client.publish(model, 1, "RUN/a1/step-000000"), ignore)
            facts = await client.snapshot(uri)
            assert facts is not None
            assert facts.time
            assert await client.snapshot(uri + "x") is None
            await client.download(uri, tmp_path)
        finally:
            await client.execute(client.unload_model(model), ignore)
    finally:
        await client.close()
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["r"] == 8
    assert load_file(tmp_path / "adapter_model.safetensors")
