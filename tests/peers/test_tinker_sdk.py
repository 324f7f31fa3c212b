"""The official SDK drives `mtrl serve`: one body of tests, three generations of the API.

0.16.1 speaks JSON; 0.25.0 writes passes and reads results in protobuf; 0.38.0 also needs ids of
sequences, creates a model by loading, and finishes its session. Each needs an environment of its
own (about 350 MB), as it pins much:

    python -m venv ~/.venvs/tinker16 && ~/.venvs/tinker16/bin/pip install tinker==0.16.1
    python -m venv ~/.venvs/tinker25 && ~/.venvs/tinker25/bin/pip install tinker==0.25.0
    python -m venv ~/.venvs/tinker38 && ~/.venvs/tinker38/bin/pip install tinker==0.38.0

MTRL_TINKER16_PYTHON, MTRL_TINKER25_PYTHON and MTRL_TINKER38_PYTHON name their interpreters when
they are elsewhere. What is missing is skipped:

    python -m pytest -m peer -rs tests/peers/test_tinker_sdk.py
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.server_kit import Client, make_base, serving
from tests.peers.venvs import interpreter

VERSIONS = {"16": "0.16.1", "25": "0.25.0", "38": "0.38.0"}

pytestmark = pytest.mark.peer


SCRIPT = r"""
import json, sys
import tinker
from tinker import types

url, key = sys.argv[1:3]
service = tinker.ServiceClient(base_url=url, api_key=key)
out = {"version": tinker.__version__}
models = service.get_server_capabilities().supported_models
out["models"] = [m.model_name for m in models]
training = service.create_lora_training_client(base_model=models[0].model_name, rank=8, seed=3)
out["info"] = training.get_info().model_dump()
text = [1, 5, 9, 13, 2, 30, 31, 32, 3]

def datum():
    return types.Datum(
        model_input=types.ModelInput.from_ints(text[:-1]),
        loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * 8},
    )

adam = types.AdamParams(learning_rate=0.005)
losses = []
for _ in range(120):
    one = training.forward_backward([datum()], "cross_entropy")
    two = training.optim_step(adam)
    losses.append(one.result().metrics["loss:sum"])
    two.result()
out["losses"] = [losses[0], losses[-1]]

prompt = types.ModelInput.from_ints(text[:1])
params = types.SamplingParams(max_tokens=20, temperature=0.0, stop=[3])
unnamed = training.save_weights_and_get_sampling_client()
got = unnamed.sample(prompt, 2, params).result()
out["sampled"] = [s.tokens for s in got.sequences]
out["stops"] = [s.stop_reason for s in got.sequences]
path = training.save_weights_for_sampler("snap").result().path
named = service.create_sampling_client(model_path=path)
out["named"] = named.sample(prompt, 1, params).result().sequences[0].tokens
out["prompt_logprobs"] = named.compute_logprobs(types.ModelInput.from_ints(text)).result()
forward = training.forward([datum()], "cross_entropy").result()
out["trained_logprobs"] = forward.loss_fn_outputs[0]["logprobs"].tolist()

state = training.save_state("state").result().path
out["state"] = state
restored = service.create_training_client_from_state_with_optimizer(state)
again = restored.forward_backward([datum()], "cross_entropy").result()
out["restored_loss"] = again.metrics["loss:sum"]
same = training.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
out["same_loss"] = same
rl = types.Datum(
    model_input=types.ModelInput.from_ints(text[:-1]),
    loss_fn_inputs={"target_tokens": text[1:], "logprobs": out["trained_logprobs"],
                    "advantages": [0.5] * 8},
)
out["rl"] = restored.forward_backward([rl], "importance_sampling").result().metrics["loss:sum"]
restored.optim_step(adam).result()

rest = service.create_rest_client()
out["runs"] = [r.training_run_id for r in rest.list_training_runs().result().training_runs]
listed = rest.list_checkpoints(training.model_id).result().checkpoints
out["checkpoints"] = sorted(c.tinker_path for c in listed)
rest.delete_checkpoint(training.model_id, "sampler_weights/snap").result()
listed = rest.list_checkpoints(training.model_id).result().checkpoints
out["after_delete"] = [c.tinker_path for c in listed]
out["model_id"] = training.model_id

try:
    training.forward_backward([types.Datum(
        model_input=types.ModelInput.from_ints([1, 10**6]),
        loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0, 1.0]},
    )], "cross_entropy").result()
except Exception as error:
    out["error"] = str(error)
out["restored_id"] = restored.model_id
out["finishes"] = hasattr(service, "__exit__")
if out["finishes"]:
    with service:
        pass
print("RESULT " + json.dumps(out, default=str))
"""

KEY = "tml-a-test-key"


@pytest.fixture(scope="module", params=VERSIONS)
def answer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    short = str(request.param)
    python = interpreter(f"tinker{short}")
    if not python.exists():
        pytest.skip(f"no tinker {VERSIONS[short]} at {python}")
    folder = tmp_path_factory.mktemp("sdk")
    base = make_base(folder / "base")
    environment = {**os.environ, "SERVER_KEY": KEY}
    with serving(
        folder / "store",
        base,
        "--api-key-env",
        "SERVER_KEY",
        env=environment,
        headers={"X-API-Key": KEY},
    ) as client:
        result = run_sdk(python, client)
        result["expected_version"] = VERSIONS[short]
        result["counters"] = client.counters()
        yield result


def run_sdk(python: Path, client: Client) -> dict[str, Any]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["TINKER_TELEMETRY"] = "0"
    done = subprocess.run(
        [str(python), "-c", SCRIPT, str(client.http.base_url), KEY],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line[7:])
            return result
    raise AssertionError(done.stdout + done.stderr)


def test_it_is_the_pinned_version(answer: dict[str, Any]) -> None:
    assert answer["version"] == answer["expected_version"]
    assert answer["models"] == ["mtrl-tiny"]
    assert answer["info"]["lora_rank"] == 8


def test_cross_entropy_falls_below_a_tenth(answer: dict[str, Any]) -> None:
    first, last = answer["losses"]
    assert last < first / 10


def test_it_samples_what_it_learned(answer: dict[str, Any]) -> None:
    learned = [5, 9, 13, 2, 30, 31, 32, 3]
    assert answer["sampled"] == [learned, learned]
    assert answer["stops"] == ["stop", "stop"]
    assert answer["named"] == learned


def test_prompt_logprobs_are_the_trainers(answer: dict[str, Any]) -> None:
    pairs = zip(answer["prompt_logprobs"][1:], answer["trained_logprobs"], strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5


def test_it_saves_loads_lists_and_deletes(answer: dict[str, Any]) -> None:
    model = answer["model_id"]
    assert answer["state"] == f"tinker://{model}/weights/state"
    assert answer["restored_loss"] == pytest.approx(answer["same_loss"], rel=1e-6)
    assert answer["rl"] == pytest.approx(-0.5 * 8, rel=1e-4)
    assert model in answer["runs"]
    assert answer["checkpoints"] == [
        f"tinker://{model}/sampler_weights/snap",
        f"tinker://{model}/weights/state",
    ]
    assert answer["after_delete"] == [f"tinker://{model}/weights/state"]


def test_the_newest_creates_by_loading_and_finishes_its_session(answer: dict[str, Any]) -> None:
    newest = answer["version"] == "0.38.0"
    assert answer["finishes"] == newest
    assert (":train:" in answer["restored_id"]) == newest
    assert answer["counters"]["sessions"] == (0 if newest else 1)
    assert answer["counters"]["applied"][answer["restored_id"]]["optim_step"] == 1


def test_bad_tokens_are_named(answer: dict[str, Any]) -> None:
    assert "token 1000000 at position 1 is outside 0..47" in answer["error"]
