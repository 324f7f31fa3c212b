"""Weights leave the server as safetensors, behind the link that the SDK asks for."""

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from mtrl_cli.local.archive import Links
from mtrl_cli.local.engine import Datum, Weights, gradient, load_base
from mtrl_cli.local.errors import RefusedError
from tests.local.server_kit import (
    Client,
    backward,
    datum,
    environment,
    make_base,
    sample,
    serving,
    step,
)

TEXT = [1, 5, 9, 13, 2, 30, 31, 32, 3]
KEY = "open-sesame"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


def trained(client: Client, rank: int, name: str = "RUN/a1/step-000001") -> tuple[str, str]:
    """A model after one step: the URIs of its snapshot and of its state."""
    model = client.model(client.session(), rank=rank)
    client.done("forward_backward", backward(model, 1, [datum(TEXT)]))
    client.done("optim_step", step(model, 2, rate=0.05))
    named = {"model_id": model, "path": name}
    snapshot = client.done("save_weights_for_sampler", {**named, "seq_id": 3})["path"]
    return snapshot, client.done("save_weights", {**named, "seq_id": 4})["path"]


def archive_path(uri: str) -> str:
    model, _, checkpoint = uri.removeprefix("tinker://").partition("/")
    return f"/api/v1/training_runs/{model}/checkpoints/{checkpoint}/archive"


def downloaded(client: Client, uri: str) -> dict[str, bytes]:
    """The files of a checkpoint, fetched as the SDK's command line does: no key with the link."""
    answer = client.http.get(archive_path(uri), headers={"accept": "application/gzip"})
    assert answer.status_code == 302, answer.text
    packed = httpx.get(answer.headers["Location"], trust_env=False)
    assert packed.status_code == 200, packed.text
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def prompt_logprobs(client: Client, uri: str) -> list[float]:
    opened = client.call(
        "create_sampling_session", {"session_id": client.session(), "model_path": uri}
    )
    asked = sample(opened["sampling_session_id"], TEXT, 1, prompt_logprobs=True)
    return client.done("asample", asked)["prompt_logprobs"][1:]


def recomputed(base: Path, weights: Weights) -> list[float]:
    """The same logprobs from weights in hand, without the server."""
    shape, _ = load_base(base)
    tokens = np.array(TEXT, np.int32)
    given = Datum(tokens[:-1], {"target_tokens": tokens[1:]})
    return gradient.logprobs(shape, weights, [given])[0].tolist()


def stored(store: Path, uri: str) -> dict[str, Any]:
    model, kind, name = uri.removeprefix("tinker://").split("/", 2)
    with np.load(store / "models" / model / kind / f"{name.replace('/', '+')}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files if key != "__meta__"}


def test_a_model_trained_whole_is_handed_out_whole(tmp_path: Path, base: Path) -> None:
    with serving(tmp_path, base) as client:
        snapshot, state = trained(client, rank=0)
        files = downloaded(client, snapshot)
        seen = prompt_logprobs(client, snapshot)
        of_state = load(downloaded(client, state)["model.safetensors"])
    assert set(files) == {"model.safetensors", "config.json"}
    weights, kept = load(files["model.safetensors"]), stored(tmp_path, snapshot)
    assert set(weights) == set(kept) == set(of_state)
    for name, value in weights.items():
        assert value.dtype == np.float32
        assert value.tobytes() == kept[name].tobytes() == of_state[name].tobytes()
    shape, _ = load_base(base)
    config = json.loads(files["config.json"])
    told = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    numbers = [shape.vocab, shape.width, shape.layers, shape.heads]
    assert [config[key] for key in told] == numbers
    assert recomputed(base, weights) == pytest.approx(seen, abs=1e-5)


def test_an_adapter_is_handed_out_in_the_shape_of_peft(tmp_path: Path, base: Path) -> None:
    with serving(tmp_path, base) as client:
        snapshot, state = trained(client, rank=4)
        files = downloaded(client, snapshot)
        seen = prompt_logprobs(client, snapshot)
        of_state = load(downloaded(client, state)["adapter_model.safetensors"])
    assert set(files) == {"adapter_model.safetensors", "adapter_config.json"}
    adapter, config = (
        load(files["adapter_model.safetensors"]),
        json.loads(files["adapter_config.json"]),
    )
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 32.0)
    kept = stored(tmp_path, snapshot)
    assert adapter.keys() == of_state.keys()
    _, weights = load_base(base)
    rebuilt = dict(weights)
    for name, value in weights.items():
        module = f"base_model.model.{name}"
        if name == "embed":
            a, b = f"{module}.lora_embedding_A", f"{module}.lora_embedding_B"
        else:
            a, b = f"{module}.lora_A.weight", f"{module}.lora_B.weight"
        assert name.rpartition(".")[2] in config["target_modules"]
        assert np.array_equal(adapter[a], kept[f"parameter/{name}.A"].T)
        assert np.array_equal(adapter[b], kept[f"parameter/{name}.B"].T)
        assert np.array_equal(adapter[b], of_state[b])
        # PEFT adds (alpha / r) B A to a weight [out, in]; the engine's matrices are [in, out].
        rebuilt[name] = value + (32.0 / 4) * (adapter[b] @ adapter[a]).T
    assert recomputed(base, rebuilt) == pytest.approx(seen, abs=1e-5)
    assert recomputed(base, weights) != pytest.approx(seen, abs=1e-3)  # the base model is another


def test_a_link_is_good_for_its_own_checkpoint_and_its_own_time(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = environment(SERVER_KEY=KEY)
    with serving(
        tmp_path, base, "--api-key-env", "SERVER_KEY", env=env, headers={"X-API-Key": KEY}
    ) as client:
        snapshot, _ = trained(client, rank=0)
        link = client.http.get(archive_path(snapshot)).headers["Location"]
        bare = httpx.Client(trust_env=False)
        assert bare.get(link).status_code == 200
        assert bare.get(str(client.http.base_url) + archive_path(snapshot)).status_code == 401
        other = link.replace("sampler_weights", "weights")
        for wrong in (
            other,
            link.partition("?")[0],
            link[:-1] + "x",
            link.replace("expires=1", "expires=2"),
        ):
            assert bare.get(wrong).status_code == 403, wrong
        bare.close()
        absent = archive_path(snapshot).replace("step-000001", "step-000009")
        assert client.http.get(absent).status_code == 404
        assert (
            client.http.get(archive_path(snapshot).replace("RUN/a1", "..%2F..")).status_code == 400
        )
    links = Links()
    path, _ = links.sign("/x")
    query = dict(part.split("=") for part in path.partition("?")[2].split("&"))
    links.check("/x", query)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    with pytest.raises(RefusedError, match="expired"):
        links.check("/x", query)
