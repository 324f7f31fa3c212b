"""Protobuf bodies: the same calls and answers as in JSON, under the same rules."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from mtrl_cli.wire import tinker_messages as wire

from .server_kit import Client, backward, datum, forward, make_base, sample, serving, step, until

TOKENS = [1, 5, 9, 13, 2, 30]
PROTOBUF = "application/x-protobuf"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("protobuf")
    with serving(folder / "store", make_base(folder / "base"), "--max-rows", "1") as client:
        yield client


def message(model: str, seq: int | None, loss: str = "cross_entropy", **inputs: Any) -> Any:
    request = wire.new("ForwardBackwardRequest")
    request.model_id, request.loss_fn = model, loss
    if seq is not None:
        request.seq_id = seq
    sent = request.data.add()
    sent.model_input.add().encoded_text.tokens = np.array(TOKENS[:-1], "<i4").tobytes()
    arrays = inputs or {"weights": [1.0] * 5}
    for name, values in {"target_tokens": TOKENS[1:], **arrays}.items():
        tensor = sent.loss_fn_inputs[name]
        tensor.dtype = wire.INT64 if name == "target_tokens" else wire.FLOAT32
        tensor.dense = np.array(values, wire.DTYPES[tensor.dtype]).tobytes()
        tensor.shape.append(len(values))
    return request


def post(client: Client, body: bytes, path: str = "forward_backward") -> httpx.Response:
    headers = {"Content-Type": PROTOBUF}
    return client.http.post(f"/api/v1/{path}", content=body, headers=headers)


def retrieve(client: Client, request_id: str, accept: str = PROTOBUF) -> httpx.Response:
    while True:
        reply = client.http.post(
            "/api/v1/retrieve_future", json={"request_id": request_id}, headers={"Accept": accept}
        )
        if b"try_again" not in reply.content:
            return reply


def passed(client: Client, request: Any) -> Any:
    reply = post(client, request.SerializeToString())
    assert reply.status_code == 200, reply.text
    answer = retrieve(client, reply.json()["request_id"])
    assert answer.headers["Content-Type"] == PROTOBUF
    return wire.read("ForwardBackwardOutput", answer.content)


def test_a_pass_is_the_same_in_both_formats(client: Client) -> None:
    """Two models with one seed, one trained over each format, end with the same logprobs."""
    session = client.session()
    one, two = client.model(session, 0), client.model(session, 1)
    rl = {"logprobs": [-0.1, -0.2, -0.3, -0.4, -0.5], "advantages": [0.0, 1.0, -1.0, 0.5, 2.0]}
    output = passed(client, message(one, 1, "ppo", **rl))
    other = client.done("forward_backward", backward(two, 1, [datum(TOKENS, **rl)], "ppo"))
    [record] = output.loss_fn_outputs
    batched = record.fields["logprobs"]
    assert (output.loss_fn_output_type, record.num_datums) == ("ArrayRecord", 1)
    assert np.frombuffer(batched.offsets, "<i8").tolist() == [0, 20]
    expected = np.array(other["loss_fn_outputs"][0]["logprobs"]["data"], np.float32)
    assert np.array_equal(np.frombuffer(batched.data, "<f4"), expected)
    assert output.metrics["loss:sum"] == pytest.approx(other["metrics"]["loss:sum"])
    for model in (one, two):
        client.done("optim_step", step(model, 2, 0.05))
    only = message(one, 3)
    only.forward_only = True
    after = passed(client, only).loss_fn_outputs[0].fields["logprobs"].data
    same = client.done("forward", forward(two, 3, [datum(TOKENS)]))
    trained = np.array(same["loss_fn_outputs"][0]["logprobs"]["data"], np.float32)
    assert np.array_equal(np.frombuffer(after, "<f4"), trained)
    assert not np.array_equal(trained, expected)
    assert client.counters()["applied"][one] == {
        "forward_backward": 1, "optim_step": 1, "forward": 1,
    }  # fmt: skip


def test_a_result_comes_in_the_format_that_is_asked_for(client: Client) -> None:
    session = client.session()
    sampler = client.call(
        "create_sampling_session", {"session_id": session, "base_model": "mtrl-tiny"}
    )["sampling_session_id"]
    body = sample(sampler, TOKENS, params={"seed": 3}, num_samples=2, prompt_logprobs=True)
    promise = client.call("asample", body)
    assert len(set(promise["sample_sequence_ids"])) == 2
    packed = retrieve(client, promise["request_id"])
    plain = retrieve(client, promise["request_id"], "application/json").json()
    response = wire.read("SampleResponse", packed.content)
    assert packed.headers["Content-Type"] == PROTOBUF
    assert response.weights == plain["weights"] == "mtrl-tiny"
    for got, expected in zip(response.sequences, plain["sequences"], strict=True):
        assert np.frombuffer(got.tokens, "<i4").tolist() == expected["tokens"]
        assert np.array_equal(
            np.frombuffer(got.logprobs, "<f4"), np.array(expected["logprobs"], np.float32)
        )
        assert got.stop_reason == (0 if expected["stop_reason"] == "stop" else 1)
    prompt = np.frombuffer(response.prompt_logprobs, "<f4")
    assert np.isnan(prompt[0])
    assert np.array_equal(prompt[1:], np.array(plain["prompt_logprobs"][1:], np.float32))


def test_what_has_no_arrays_is_json_whatever_is_asked_for(client: Client) -> None:
    model = client.model(client.session())
    promise = client.call("save_weights", {"model_id": model, "path": "x", "seq_id": 1})
    answer = retrieve(client, promise["request_id"])
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.json()["path"] == f"tinker://{model}/weights/x"


def test_a_pass_sent_twice_is_executed_once(client: Client) -> None:
    model = client.model(client.session())
    body = message(model, 1).SerializeToString()
    first, second = post(client, body).json(), post(client, body).json()
    assert first == second
    retrieve(client, first["request_id"])
    assert client.counters()["applied"][model] == {"forward_backward": 1}
    other = message(model, 1, weights=[0.5] * 5).SerializeToString()
    assert post(client, other).status_code == 409


def _sparse(request: Any) -> None:
    request.data[0].loss_fn_inputs["weights"].sparse_csr = b"\x00"


def _image(request: Any) -> None:
    request.data[0].model_input.add().image = b""


def _set(**fields: Any) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        for name, value in fields.items():
            setattr(request.data[0].loss_fn_inputs["target_tokens"], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        (_sparse, 400, "sparse tensor is not served"),
        (_image, 400, "'image' chunk: text only is served"),
        (_set(dtype=1), 400, "dtype: 1 is not served here; allowed: 2 (int64)"),
        (_set(dense=b"123"), 400, "not a whole number of values"),
        (_set(dense=b"12345678"), 400, "shape: must be [1]"),
        (_set(dense=np.array([2**40] * 5).tobytes()), 400, "beyond 2147483647"),
        (_set(dense=np.array([99] * 5).tobytes()), 400, "token 99 at position 0 is outside 0..47"),
        (lambda r: r.ClearField("data"), 400, "data: empty"),
        (lambda r: r.ClearField("model_id"), 400, "model_id: missing"),
        (lambda r: setattr(r, "seq_id", 0), 400, "seq_id: 0 is below 1"),
        (lambda r: setattr(r, "loss_fn", "dro"), 422, "'dro' is not served"),
        (lambda r: r.loss_fn_config.update({"x": 1.0}), 422, "not a setting of cross_entropy"),
        (lambda r: setattr(r.loss_fn_config_v2["x"], "text", "y"), 400, "expected a number"),
        (lambda r: r.data[0].loss_fn_inputs["mask"], 400, "mask: not known here"),
    ],
)
def test_a_pass_that_is_wrong_is_refused_and_uses_no_number(
    client: Client, change: Callable[[Any], None], status: int, says: str
) -> None:
    model = client.model(client.session())
    request = message(model, 1)
    change(request)
    reply = post(client, request.SerializeToString())
    assert reply.status_code == status
    assert says in reply.json()["detail"]
    assert passed(client, message(model, 1)).metrics["loss:sum"] > 0


def test_only_passes_come_so(client: Client) -> None:
    assert post(client, b"\xff\xff").json()["detail"] == (
        "body: not a protobuf ForwardBackwardRequest"
    )
    for path in ("optim_step", "asample", "create_session"):
        assert post(client, b"", path).status_code == 415


def test_a_model_is_created_by_loading(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    client.done("forward_backward", backward(model, 1, [datum(TOKENS)]))
    client.done("optim_step", step(model, 2, 0.05))
    state = client.done("save_weights", {"model_id": model, "path": "s", "seq_id": 3})["path"]
    body = {"session_id": session, "model_seq_id": 7, "path": state, "optimizer": True}
    promise = client.call("load_weights", body)
    assert promise["model_id"] == f"{session}:train:7"
    assert client.call("load_weights", body) == promise
    assert client.result(promise["request_id"])["model_id"] == promise["model_id"]
    losses = [
        client.done("forward", forward(name, seq, [datum(TOKENS)]))["metrics"]["loss:sum"]
        for name, seq in ((model, 4), (promise["model_id"], 1))
    ]
    assert losses[0] == losses[1]
    info = client.call("get_info", {"model_id": promise["model_id"]})
    assert info["lora_rank"] == 4
    named = {"model_id": promise["model_id"], "path": "snap", "seq_id": 2}
    uri = client.done("save_weights_for_sampler", named)["path"]
    assert uri == f"tinker://{session}:train:7/sampler_weights/snap"
    opened = client.call("create_sampling_session", {"session_id": session, "model_path": uri})
    assert opened["sampling_session_id"]
    runs = client.get("training_runs")["training_runs"]
    assert promise["model_id"] in [run["training_run_id"] for run in runs]


@pytest.mark.parametrize(
    ("change", "status"),
    [({"path": "tinker://model_000000000000/weights/x"}, 404), ({"session_id": "no"}, 404)],
)
def test_loading_what_is_not_there_creates_nothing(
    client: Client, change: dict[str, str], status: int
) -> None:
    session, before = client.session(), client.counters()["models"]
    body = {
        "session_id": session, "model_seq_id": 0, "optimizer": False,
        "path": "tinker://model_000000000000/weights/x", **change,
    }  # fmt: skip
    assert client.refused("load_weights", body)[0] == status
    assert client.counters()["models"] == before


def test_a_sampling_request_is_cancelled(client: Client) -> None:
    session = client.session()
    sampler = client.call(
        "create_sampling_session", {"session_id": session, "base_model": "mtrl-tiny"}
    )["sampling_session_id"]
    long = sample(sampler, [1], max_tokens=120)
    ids = [client.call("asample", long)["request_id"] for _ in range(40)]
    cancelled = client.call("cancel_future", {"request_id": ids[-1]})
    assert cancelled == {"request_id": ids[-1], "cancelled": True}
    assert client.result(ids[-1]) == {
        "error": "cancelled; nobody waits for it", "category": "user",
    }  # fmt: skip
    assert not client.call("cancel_future", {"request_id": ids[-1]})["cancelled"]
    assert client.result(ids[0])["sequences"]
    assert client.refused("cancel_future", {"request_id": "x"})[0] == 404
    until(lambda: client.counters()["sampling"]["in_flight"] == 0, 30)


def test_the_configuration_of_clients(client: Client) -> None:
    assert client.call("client/config", {"sdk_version": "0.38.0"}) == {"pjwt_auth_enabled": False}
    assert client.call("client/dynamic_config", {})["sample_cancel_enabled"] is True
