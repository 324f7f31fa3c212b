"""What is exported as Datums is what the training call sent: the ledger's digests agree."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mtrl_cli.cli.app import app
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.training.runs import lines, train_on
from tests.training.test_algorithms import Gambler


@pytest.mark.parametrize("kl", [0.0, 0.3])
async def test_exported_datums_have_the_digest_of_the_call(tmp_path: Path, kl: float) -> None:
    """Also with a KL penalty: its reference logprobs are recorded to the last bit."""
    async with ScriptedPolicyServer(sampler=Gambler()) as server:
        options = ("train.steps=3", "group.size=8", "group.per_step=2", f"train.kl={kl}")
        run = await train_on(server.url, tmp_path, *options)
    calls = [c for c in lines(run, "ledger.jsonl") if c.get("kind") == "forward_backward"]
    trained = [line["step"] for line in lines(run, "metrics.jsonl") if line.get("trained_episodes")]
    assert trained
    for call, step in zip(calls, trained, strict=True):
        out = tmp_path / f"{step}.jsonl"
        command = ["export", run.run, "--format", "tinker", "--step", str(step)]
        done = CliRunner().invoke(app, [*command, "--runs-dir", str(tmp_path), "--out", str(out)])
        assert done.exit_code == 0, done.output
        head = json.dumps([call["model"], call["seq"], "importance_sampling", {}])
        digest = hashlib.sha256(head.encode())
        for line in out.read_text().splitlines():
            datum = json.loads(line)
            inputs = datum["loss_fn_inputs"]
            for array in (
                np.array(datum["model_input"]["chunks"][0]["tokens"], dtype=np.int32),
                np.array(inputs["target_tokens"]["data"], dtype=np.int32),
                np.array(inputs["logprobs"]["data"], dtype=np.float32),
                np.array(inputs["advantages"]["data"], dtype=np.float32),
            ):
                digest.update(len(array).to_bytes(8) + array.tobytes())
        assert digest.hexdigest() == call["digest"]
