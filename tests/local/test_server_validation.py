"""What is refused, with which status, and what the reason names."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.server_kit import (
    BASE_MODEL,
    Client,
    backward,
    datum,
    environment,
    forward,
    make_base,
    sample,
    serving,
    step,
)

TOKENS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    base = make_base(tmp_path_factory.mktemp("base"))
    with serving(tmp_path_factory.mktemp("store"), base) as made:
        yield made


@pytest.fixture(scope="module")
def model(client: Client) -> str:
    return client.model(client.session())


@pytest.fixture(scope="module")
def sampler(client: Client) -> str:
    body = {"session_id": client.session(), "base_model": BASE_MODEL}
    made: str = client.call("create_sampling_session", body)["sampling_session_id"]
    return made


def tensor(data: list[Any], dtype: str = "float32") -> dict[str, Any]:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}


def altered(**inputs: Any) -> dict[str, Any]:
    made = datum(TOKENS, logprobs=[-1.0] * 3, advantages=[1.0] * 3)
    made["loss_fn_inputs"].update(inputs)
    return made


DATA = [
    ({"target_tokens": tensor([2, 3], "int64")}, "2 values for 3 input tokens"),
    ({"target_tokens": tensor([2, 3, 48], "int64")}, "token 48 at position 2 is outside 0..47"),
    ({"target_tokens": tensor([2, 3, -1], "int64")}, "token -1 at position 2"),
    ({"target_tokens": tensor([2, 3, 1.5], "int64")}, "token ids are integers"),
    ({"target_tokens": tensor([2, 3, 2**40], "int64")}, "a token id is beyond"),
    ({"target_tokens": tensor([2, 3, 4])}, "dtype: 'float32' is not served here; allowed: int64"),
    ({"logprobs": tensor([-1.0, -1.0])}, "logprobs: 2 values for 3 input tokens"),
    ({"logprobs": tensor([-1.0, -1.0, 1e39])}, "logprobs: value 2 is not a finite float32"),
    ({"logprobs": tensor([-1.0, -1.0, 10**400])}, "logprobs: a value is too large"),
    ({"logprobs": tensor([-1.0, -1.0, None])}, "expected numbers"),
    ({"logprobs": tensor([-1.0, -1.0, True])}, "expected numbers"),
    ({"advantages": {**tensor([1.0] * 3), "shape": [3, 1]}}, "shape: must be [3]"),
    ({"advantages": [1.0] * 3}, "expected an object with data"),
    ({"mask": tensor([1.0] * 3)}, "mask: not known here; allowed: target_tokens, logprobs"),
    ({"weights": tensor([1.0] * 3)}, "weights: not known here"),
]


@pytest.mark.parametrize(("inputs", "reason"), DATA)
def test_training_data(client: Client, model: str, inputs: dict[str, Any], reason: str) -> None:
    body = backward(model, 1, [altered(), altered(**inputs)], "importance_sampling")
    status, said = client.refused("forward_backward", body)
    assert status == 400
    assert reason in said
    assert "forward_backward_input.data[1]" in said


@pytest.mark.parametrize("name", ["target_tokens", "logprobs", "advantages"])
def test_a_missing_array(client: Client, model: str, name: str) -> None:
    made = altered()
    del made["loss_fn_inputs"][name]
    status, said = client.refused("forward_backward", backward(model, 1, [made], "ppo"))
    assert (status, f"loss_fn_inputs.{name}: missing" in said) == (400, True)


def test_forward_needs_only_targets(client: Client) -> None:
    model = client.model(client.session())
    made = datum(TOKENS)
    del made["loss_fn_inputs"]["weights"]
    answer = client.done("forward", forward(model, 1, [made]))
    assert answer["loss_fn_outputs"][0]["logprobs"]["shape"] == [3]


def test_loss_names_and_settings(client: Client, model: str) -> None:
    status, said = client.refused("forward_backward", backward(model, 1, [datum(TOKENS)], "dro"))
    assert status == 422
    assert "'dro' is not served; allowed: cross_entropy, importance_sampling, ppo, cispo" in said
    for loss, config, reason in (
        ("ppo", {"clip": 1.0}, "clip: not a setting of ppo; allowed: clip_low_threshold"),
        ("importance_sampling", {"clip_low_threshold": 1.0}, "not a setting of importance"),
        ("ppo", {"clip_low_threshold": 2.0, "clip_high_threshold": 1.0}, "2 is above"),
    ):
        status, said = client.refused(
            "forward_backward", backward(model, 1, [altered()], loss, config)
        )
        assert (status, reason in said) == (422, True), said


def test_inputs(client: Client, model: str) -> None:
    made = datum(TOKENS)
    for chunks, reason in (
        ([{"type": "image", "data": "", "format": "png"}], "text only"),
        ([{"type": "image_asset_pointer", "location": "x"}], "text only"),
        ([{"data": "", "format": "png"}], "text only"),
        ([], "no tokens"),
        ("x", "expected a list"),
        ([{"tokens": "abc"}], "expected a list of token ids"),
        ([{"tokens": [1, "2", 3]}], "token ids are integers"),
    ):
        changed = {**made, "model_input": {"chunks": chunks}}
        status, said = client.refused("forward_backward", backward(model, 1, [changed]))
        assert (status, reason in said) == (400, True), said
    long = [1] * 130
    status, said = client.refused("forward_backward", backward(model, 1, [datum(long)]))
    assert "129 tokens exceed the context of 128" in said
    assert "empty" in client.refused("forward_backward", backward(model, 1, []))[1]
    assert client.refused("forward_backward", backward(model, 0, [made]))[0] == 400
    assert client.refused("forward_backward", backward("model_x", 1, [made]))[0] == 404
    assert client.refused("forward_backward", {**backward(model, 1, [made]), "seq_id": "1"})[0] == (
        400
    )


def test_adam(client: Client, model: str) -> None:
    for adam, reason in (
        ({"beta1": 1.0}, "adam_params.beta1: 1.0 is outside"),
        ({"rate": -0.1}, "adam_params.learning_rate"),
        ({"eps": "x"}, "adam_params.eps: expected a number"),
        ({"momentum": 0.9}, "adam_params.momentum: not known here"),
    ):
        status, said = client.refused("optim_step", step(model, 1, **adam))  # type: ignore[arg-type]
        assert (status, reason in said) == (400, True), said


SAMPLES = [
    ({"max_tokens": 0}, "max_tokens: 0 is outside 1"),
    ({"max_tokens": 125}, "4 prompt tokens + 125 exceed the context of 128"),
    ({"temperature": -1}, "temperature: -1 is outside 0..1000"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": "x"}, "top_k: expected an integer"),
    ({"seed": -1}, "seed: -1 is outside"),
    ({"stop": "###"}, "stop strings are not served"),
    ({"stop": ["#"]}, "stop strings are not served"),
    ({"stop": [48]}, "token 48 is outside 0..47"),
]


@pytest.mark.parametrize(("params", "reason"), SAMPLES)
def test_sampling_params(client: Client, sampler: str, params: dict[str, Any], reason: str) -> None:
    status, said = client.refused("asample", sample(sampler, TOKENS, params=params))
    assert (status, reason in said) == (400, True), said


def test_sampling_requests(client: Client, sampler: str, model: str) -> None:
    good = sample(sampler, TOKENS)
    for change, expected in (
        ({"num_samples": 0}, 400), ({"topk_prompt_logprobs": 2}, 400),
        ({"prompt": {"chunks": [{"tokens": []}]}}, 400),
        ({"prompt": {"chunks": [{"tokens": [48]}]}}, 400),
        ({"sampling_session_id": "sampling_x"}, 404), ({"sampling_session_id": None}, 400),
        ({"sampling_session_id": None, "base_model": "gpt"}, 400),
        ({"sampling_session_id": None, "model_path": "x"}, 400),
        ({"sampling_session_id": None, "model_path": f"tinker://{model}/weights/x"}, 400),
        ({"sampling_session_id": None, "model_path": f"tinker://{model}/sampler_weights/x"}, 404),
    ):  # fmt: skip
        assert client.refused("asample", {**good, **change})[0] == expected, change
    # Without max_tokens the context is the limit.
    params = {"temperature": 1.0, "seed": 1}
    answer = client.done("asample", {**good, "sampling_params": params})
    assert len(answer["sequences"][0]["tokens"]) == 124


def test_models(client: Client) -> None:
    session = client.session()
    good = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL}
    for change, expected in (
        ({"base_model": "gpt"}, 400), ({"lora_config": {"rank": -1}}, 400),
        ({"lora_config": {}}, 400), ({"session_id": "session_x"}, 404),
        ({"lora_config": {"rank": 2, "train_mlp": False, "train_attn": False,
                          "train_unembed": False}}, 400),
    ):  # fmt: skip
        assert client.refused("create_model", {**good, **change})[0] == expected, change
    assert client.get(f"sessions/{session}")["training_run_ids"] == []


def test_bodies(client: Client) -> None:
    def post(content: bytes, kind: str = "application/json") -> tuple[int, str]:
        response = client.http.post(
            "/api/v1/session_heartbeat", content=content, headers={"Content-Type": kind}
        )
        return response.status_code, response.json()["detail"]

    assert post(b"{")[0] == 400
    assert post(b"[]") == (400, "body: expected a JSON object")
    assert post(b"\xff{}")[0] == 400
    assert post(b"[" * 100_000)[0] == 400
    for name in ("NaN", "Infinity", "-Infinity"):
        status, said = post(f'{{"session_id": {name}}}'.encode())
        assert (status, f"{name} is not JSON" in said) == (400, True)
    assert post(b"{}", "text/plain")[0] == 415
    assert post(b"{}", "application/x-protobuf")[0] == 415
    assert post(b'{"session_id": ' + b" " * 65 * 2**20 + b"1}")[0] == 413
    assert client.refused("nothing", {})[0] == 404
    assert client.http.get("/api/v1/retrieve_future").status_code == 404
    assert client.http.get("/").status_code == 404


def test_a_refused_call_does_not_use_its_number(client: Client) -> None:
    model = client.model(client.session())
    client.refused("forward_backward", backward(model, 1, [datum([1, 99])]))
    assert "error" not in client.done("forward_backward", backward(model, 1, [datum(TOKENS)]))


def test_the_api_key(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    env = environment(MTRL_TEST_KEY="tml-right")
    with serving(
        tmp_path / "s",
        base,
        "--api-key-env",
        "MTRL_TEST_KEY",
        env=env,
        headers={"X-API-Key": "tml-right"},
    ) as client:
        client.session()
        for headers in ({}, {"X-API-Key": "tml-wrong"}):
            other = Client(str(client.http.base_url), headers)
            status, said = other.refused("create_session", {})
            assert (status, said) == (401, "X-API-Key: missing or not the key of this server")
            assert other.http.get("/api/v1/training_runs").status_code == 401
            assert other.http.get("/api/v1/healthz").json() == {"status": "ok"}
            other.close()


async def test_a_torn_request_does_not_disturb_the_server(client: Client) -> None:
    url = client.http.base_url
    head = b"POST /api/v1/asample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for sent in (head + b"Content-Length: 100\r\n\r\n{", b"\0\0\r\n\r\n"):
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await asyncio.to_thread(client.session)


def test_numbers_survive_the_trip() -> None:
    """Nine digits are enough for every float32."""
    import numpy as np

    from mtrl_cli.local import calls, codec

    bits = np.random.default_rng(0).integers(0, 0x7F000000, 5000, dtype=np.int64)
    values = -bits.astype(np.uint32).view(np.float32)
    body = json.loads(codec.encode(calls.TrainResult([values], {"loss:sum": 1.5})))
    back = np.array(body["loss_fn_outputs"][0]["logprobs"]["data"], np.float32)
    assert (back == values).all()
