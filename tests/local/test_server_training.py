"""Training over HTTP: learning, exactly-once, saving, loading, and tenants beside each other."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.local.server_kit import (
    BASE_MODEL,
    Client,
    backward,
    datum,
    forward,
    make_base,
    sample,
    serving,
    step,
    until,
)

TEXT = [1, 5, 9, 13, 2, 30, 31, 32, 3]
OTHER = [1, 40, 41, 42, 43, 3]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("store"), base) as made:
        yield made


def fit(client: Client, model: str, tokens: list[int], steps: int, first: int = 1) -> list[float]:
    losses = []
    for number in range(first, first + 2 * steps, 2):
        one = client.call("forward_backward", backward(model, number, [datum(tokens)]))
        two = client.call("optim_step", step(model, number + 1))
        losses.append(client.result(one["request_id"])["metrics"]["loss:sum"])
        assert "metrics" in client.result(two["request_id"])
    return losses


def logprobs(client: Client, model: str, seq: int, tokens: list[int]) -> list[float]:
    answer = client.done("forward", forward(model, seq, [datum(tokens)]))
    data: list[float] = answer["loss_fn_outputs"][0]["logprobs"]["data"]
    return data


@pytest.mark.parametrize("rank", [8, 0])
def test_cross_entropy_falls_below_a_tenth(client: Client, rank: int) -> None:
    model = client.model(client.session(), rank=rank)
    losses = fit(client, model, TEXT, 120)
    assert losses[-1] < losses[0] / 10
    assert client.counters()["applied"][model] == {"forward_backward": 120, "optim_step": 120}


def test_two_models_at_once_end_as_each_alone(client: Client) -> None:
    session = client.session()

    def run(number: int, tokens: list[int], out: dict[int, Any]) -> None:
        mine = Client(str(client.http.base_url))
        model = mine.model(session, number, rank=4, seed=number % 2)
        out[number] = (fit(mine, model, tokens, 15), logprobs(mine, model, 31, tokens))
        mine.close()

    alone: dict[int, Any] = {}
    run(0, TEXT, alone)
    run(1, OTHER, alone)
    together: dict[int, Any] = {}
    threads = [Thread(target=run, args=(n, t, together)) for n, t in ((2, TEXT), (3, OTHER))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together[2] == alone[0]
    assert together[3] == alone[1]


def test_the_same_call_again_is_the_same_call(client: Client) -> None:
    model = client.model(client.session())
    calls = [
        ("forward_backward", backward(model, 1, [datum(TEXT)])),
        ("optim_step", step(model, 2)),
        ("forward", forward(model, 3, [datum(TEXT)])),
        ("save_weights", {"model_id": model, "seq_id": 4, "path": "state"}),
        ("save_weights_for_sampler", {"model_id": model, "seq_id": 5, "path": "snap"}),
        ("save_weights_for_sampler",
         {"model_id": model, "seq_id": 6, "sampling_session_seq_id": 0}),
    ]  # fmt: skip
    first = [client.call(name, body)["request_id"] for name, body in calls]
    answers = [client.result(request_id) for request_id in first]
    again = [client.call(name, body)["request_id"] for name, body in calls]
    assert again == first
    assert [client.result(request_id) for request_id in again] == answers
    assert client.counters()["applied"][model] == {
        "forward_backward": 1, "optim_step": 1, "forward": 1, "save_weights": 1,
        "save_weights_for_sampler": 2,
    }  # fmt: skip


def test_a_call_whose_reply_was_lost_is_applied_once(client: Client) -> None:
    """The client dies after sending; whoever sends the same again gets that call's answer."""
    model = client.model(client.session())
    body = json.dumps(backward(model, 1, [datum(TEXT)])).encode()
    head = (
        "POST /api/v1/forward_backward HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    url = client.http.base_url
    for _ in range(3):
        with socket.create_connection((url.host, url.port)) as lost:
            lost.sendall(head + body)
    until(lambda: client.counters()["applied"].get(model))
    response = client.http.post(
        "/api/v1/forward_backward", content=body, headers={"Content-Type": "application/json"}
    )
    assert "loss_fn_outputs" in client.result(response.json()["request_id"])
    client.done("optim_step", step(model, 2))
    assert client.counters()["applied"][model] == {"forward_backward": 1, "optim_step": 1}


def test_a_used_or_a_lower_number_is_409(client: Client) -> None:
    model = client.model(client.session())
    client.done("forward_backward", backward(model, 1, [datum(TEXT)]))
    client.done("optim_step", step(model, 5))  # a gap is allowed
    status, reason = client.refused("optim_step", step(model, 5, rate=0.5))
    assert (status, "was used by another request" in reason) == (409, True)
    status, reason = client.refused("forward_backward", backward(model, 5, [datum(TEXT)]))
    assert status == 409
    status, reason = client.refused("optim_step", step(model, 3))
    assert (status, "the next is 6" in reason) == (409, True)
    assert client.counters()["applied"][model] == {"forward_backward": 1, "optim_step": 1}


def test_a_create_call_again_makes_nothing_new(client: Client) -> None:
    session = client.session()
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL,
            "lora_config": {"rank": 2}}  # fmt: skip
    first = client.call("create_model", body)
    assert client.call("create_model", body) == first
    body["lora_config"] = {"rank": 3}
    assert client.refused("create_model", body)[0] == 409
    assert client.get(f"sessions/{session}")["training_run_ids"] == [first["model_id"]]


@pytest.mark.parametrize("rank", [4, 0])
def test_a_loaded_state_trains_on_as_if_never_saved(client: Client, rank: int) -> None:
    session = client.session()
    model = client.model(session, 0, rank=rank)
    fit(client, model, TEXT, 4)
    saved = client.done("save_weights", {"model_id": model, "seq_id": 9, "path": "RUN/a1/s-4"})
    assert saved["path"] == f"tinker://{model}/weights/RUN/a1/s-4"
    on = fit(client, model, TEXT, 4, first=10)
    info = client.call("weights_info", {"tinker_path": saved["path"]})
    assert (info["base_model"], info["is_lora"]) == (BASE_MODEL, rank > 0)
    copy = client.model(session, 1, rank=rank, seed=99)
    load = {"model_id": copy, "seq_id": 1, "path": saved["path"], "optimizer": True}
    assert client.done("load_weights", load)["path"] == saved["path"]
    assert fit(client, copy, TEXT, 4, first=2) == on
    third = client.model(session, 2, rank=rank, seed=98)
    client.done("load_weights", {**load, "model_id": third, "optimizer": False})
    without = fit(client, third, TEXT, 4, first=2)
    assert without[0] == on[0]
    assert without[1:] != on[1:]


def test_only_the_first_call_may_load(client: Client) -> None:
    session = client.session()
    model = client.model(session, 0)
    uri = client.done("save_weights", {"model_id": model, "seq_id": 1, "path": "x"})["path"]
    status, reason = client.refused(
        "load_weights", {"model_id": model, "seq_id": 2, "path": uri, "optimizer": False}
    )
    assert (status, "create a new model" in reason) == (400, True)
    other = client.model(session, 1, rank=8)
    load = {"model_id": other, "seq_id": 1, "path": uri, "optimizer": False}
    status, reason = client.refused("load_weights", load)
    assert (status, "rank" in reason) == (400, True)
    for path, expected in (("tinker://model_000000000000/weights/x", 404), (uri + "y", 404),
                           ("/etc/passwd", 400), (uri.replace("weights", "other"), 400),
                           (f"tinker://{model}/weights/../../x", 400)):  # fmt: skip
        assert client.refused("load_weights", {**load, "path": path})[0] == expected


def test_names_are_immutable(client: Client) -> None:
    model = client.model(client.session())
    for kind in ("save_weights", "save_weights_for_sampler"):
        first = client.model(client.session())
        client.done(kind, {"model_id": first, "seq_id": 1, "path": "a/b"})
        status, reason = client.refused(kind, {"model_id": first, "seq_id": 2, "path": "a/b"})
        assert (status, "already exists" in reason) == (409, True)
    body = {"model_id": first, "seq_id": 2, "path": "a/b", "overwrite": True}
    assert client.refused("save_weights_for_sampler", body)[0] == 400
    client.done("save_weights", {"model_id": model, "seq_id": 1, "path": "a"})
    body = {"model_id": model, "seq_id": 2, "path": "a", "overwrite": True}
    assert "error" not in client.done("save_weights", body)
    for name in ("../x", "/x", "a//b", "a/../b", ".hidden", "a/.b", "a b", "a\\b", "x" * 300, "ü"):
        assert (
            client.refused("save_weights", {"model_id": model, "seq_id": 3, "path": name})[0] == 400
        ), name


def test_a_sampler_snapshot_does_not_move(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    uri = client.done("save_weights_for_sampler", {"model_id": model, "seq_id": 1, "path": "s0"})[
        "path"
    ]
    opened = client.call(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "model_path": uri},
    )
    sampler = opened["sampling_session_id"]
    ask = sample(sampler, TEXT, 4, prompt_logprobs=True, params={"seed": 3})
    before = client.done("asample", ask)
    assert before["weights"] == uri
    # The adapters of a fresh LoRA add nothing: the snapshot is the base model.
    there = sample("", TEXT, 4, prompt_logprobs=True, params={"seed": 3})
    del there["sampling_session_id"]
    direct = client.done("asample", {**there, "base_model": BASE_MODEL})
    assert direct["sequences"] == before["sequences"]
    assert direct["weights"] == BASE_MODEL
    fit(client, model, TEXT, 10, first=2)
    assert client.done("asample", ask) == before
    assert client.done("asample", {**there, "model_path": uri}) == before
    # What the sampler says of a prompt is what the trainer says of it.
    later = client.done(
        "save_weights_for_sampler", {"model_id": model, "seq_id": 22, "path": "s1"}
    )["path"]
    scored = client.done("asample", {**there, "model_path": later})["prompt_logprobs"]
    assert scored[0] is None
    trained = logprobs(client, model, 23, TEXT)
    assert max(abs(a - b) for a, b in zip(scored[1:], trained, strict=True)) < 1e-5


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_policy_losses_move_towards_the_advantage(client: Client, loss: str) -> None:
    model = client.model(client.session(), rank=8)
    before = logprobs(client, model, 1, TEXT)
    count = len(TEXT) - 1
    data = [datum(TEXT, logprobs=before, advantages=[1.0] * count)]
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    body = backward(model, 2, data, loss, None if loss == "importance_sampling" else config)
    answer = client.done("forward_backward", body)
    assert answer["loss_fn_outputs"][0]["logprobs"]["shape"] == [count]
    client.done("optim_step", step(model, 3, grad_clip_norm=1.0))
    assert sum(logprobs(client, model, 4, TEXT)) > sum(before)


def test_unload_frees_and_can_be_asked_again(client: Client) -> None:
    model = client.model(client.session())
    first = client.call("unload_model", {"model_id": model})
    assert client.result(first["request_id"])["status"] == "unloaded"
    assert client.call("unload_model", {"model_id": model}) == first
    status, reason = client.refused("optim_step", step(model, 1))
    assert (status, "unloaded" in reason) == (410, True)
    assert model not in client.counters()["models"]
