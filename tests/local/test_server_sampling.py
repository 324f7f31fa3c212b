"""Sampling over HTTP: seeds, stops, batching, promises, sessions and what they hold."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from mtrl_cli.local.answers import Answer
from mtrl_cli.local.errors import Failure, RefusedError
from mtrl_cli.local.promises import Promises
from tests.local.server_kit import (
    BASE_MODEL,
    SHAPE,
    Client,
    backward,
    datum,
    make_base,
    sample,
    serving,
    step,
    until,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("store"), base) as made:
        yield made


def open_base(client: Client, session: str, number: int = 0) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, "base_model": BASE_MODEL}
    sampler: str = client.call("create_sampling_session", body)["sampling_session_id"]
    return sampler


def test_a_seed_decides(client: Client) -> None:
    sampler = open_base(client, client.session())
    one = client.done("asample", sample(sampler, [1, 2], params={"seed": 5}))
    assert client.done("asample", sample(sampler, [1, 2], params={"seed": 5})) == one
    assert client.done("asample", sample(sampler, [1, 2], params={"seed": 6})) != one
    assert set(one) == {"sequences", "weights", "type"}
    (sequence,) = one["sequences"]
    assert sequence["stop_reason"] == "length"
    assert len(sequence["tokens"]) == len(sequence["logprobs"]) == 8
    assert all(value <= 0 for value in sequence["logprobs"])
    many = client.done("asample", sample(sampler, [1, 2], num_samples=3, params={"seed": 5}))
    assert many["sequences"][0] == sequence
    assert len({str(s["tokens"]) for s in many["sequences"]}) == 3


def prefer(client: Client, wait: str, body: object) -> httpx.Response:
    response = client.http.post("/api/v1/asample", json=body, headers={"Prefer": wait})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("wait", ["wait=10", 'respond-async, Wait = "10"; x=y', "wait=10, wait=0"])
def test_who_prefers_to_wait_gets_the_result_in_one_reply(client: Client, wait: str) -> None:
    sampler = open_base(client, client.session())
    body = sample(sampler, [1, 2], params={"seed": 5})
    response = prefer(client, wait, body)
    assert response.headers["Preference-Applied"] == "wait"
    merged = response.json()
    request_id = merged.pop("request_id")
    assert merged == client.done("asample", body)
    assert merged == client.result(request_id)


@pytest.mark.parametrize("wait", ["wait=0", "wait", "wait=soon", "respond-async", "await=10", ""])
def test_any_other_preference_gets_the_promise(client: Client, wait: str) -> None:
    sampler = open_base(client, client.session())
    response = prefer(client, wait, sample(sampler, [1], params={"seed": 5}))
    assert "Preference-Applied" not in response.headers
    assert set(response.json()) == {"request_id", "future_id", "status", "sample_sequence_ids"}


def test_a_wait_ends_with_its_seconds_and_with_the_longest_poll(base: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "store", base, "--poll", "0.01") as client:
        sampler = open_base(client, client.session())
        body = sample(sampler, [1], 120, num_samples=64)
        replies = [prefer(client, "wait=60", body) for _ in range(3)]
        late = [reply for reply in replies if "Preference-Applied" not in reply.headers]
        assert late
        assert all(reply.elapsed.total_seconds() < 5 for reply in replies)
        result = client.result(late[0].json()["request_id"])
        assert len(result["sequences"]) == 64


def test_what_fails_while_it_is_waited_for_says_so(client: Client) -> None:
    response = client.http.post(
        "/api/v1/asample", json=sample("sampling_none", [1]), headers={"Prefer": "wait=10"}
    )
    assert response.status_code == 404
    assert "Preference-Applied" not in response.headers


def test_a_stop_id_is_the_last_token(client: Client) -> None:
    sampler = open_base(client, client.session())
    stops = list(range(1, SHAPE.vocab))
    answer = client.done("asample", sample(sampler, [1], 50, params={"seed": 1, "stop": stops}))
    (sequence,) = answer["sequences"]
    assert sequence["stop_reason"] == "stop"
    assert sequence["tokens"][-1] in stops
    assert set(sequence["tokens"][:-1]) <= {0}


def test_a_sampling_session_is_created_once(client: Client) -> None:
    session = client.session()
    sampler = open_base(client, session)
    assert open_base(client, session) == sampler
    assert open_base(client, session, 1) != sampler
    info = client.get(f"samplers/{sampler}")
    assert info == {"sampler_id": sampler, "base_model": BASE_MODEL, "model_path": None}
    assert len(client.get(f"sessions/{session}")["sampler_ids"]) == 2


def test_many_requests_share_steps_and_stay_themselves(client: Client) -> None:
    sampler = open_base(client, client.session())
    asks = [sample(sampler, [1, 2, i % 40], 30, params={"seed": i}) for i in range(64)]
    alone = [client.done("asample", ask) for ask in asks[:3]]
    before = client.counters()["sampling"]
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda ask: client.call("asample", ask)["request_id"], asks))
    answers = [client.result(request_id) for request_id in ids]
    after = client.counters()["sampling"]
    assert answers[:3] == alone
    steps, rows = after["steps"] - before["steps"], after["rows"] - before["rows"]
    assert rows >= 64 * 29
    assert rows / steps > 4
    assert after["in_flight"] == 0


def test_sampling_goes_on_while_training_runs(client: Client) -> None:
    session = client.session()
    model, sampler = client.model(session), open_base(client, session)
    data = [datum([1, *range(2, 47)] * 2) for _ in range(1500)]
    training = client.call("forward_backward", backward(model, 1, data))["request_id"]
    client.done("asample", sample(sampler, [1], 4))
    assert client.counters()["applied"][model] == {}  # the sample did not wait for it
    assert "error" not in client.result(training)


def test_an_answer_is_the_same_whenever_it_is_asked_for(client: Client) -> None:
    sampler = open_base(client, client.session())
    request_id = client.call("asample", sample(sampler, [4, 5]))["request_id"]
    first = client.result(request_id)
    other = Client(str(client.http.base_url))
    assert other.result(request_id) == first
    other.close()
    assert client.refused("retrieve_future", {"request_id": "never-1"})[0] == 404
    server, _, _ = request_id.rpartition("-")
    assert client.refused("retrieve_future", {"request_id": f"{server}-999999"})[0] == 404
    assert client.refused("retrieve_future", {"request_id": 7})[0] == 400


def test_a_poll_ends_with_try_again(tmp_path: Path, base: Path) -> None:
    with serving(tmp_path / "store", base, "--poll", "0.05", "--max-rows", "1") as client:
        body = {"session_id": client.session(), "base_model": BASE_MODEL}
        sampler = client.call("create_sampling_session", body)["sampling_session_id"]
        asked = sample(sampler, [1], 100, num_samples=64)
        request_id = client.call("asample", asked)["request_id"]
        answer = client.call("retrieve_future", {"request_id": request_id})
        assert answer == {"type": "try_again", "request_id": request_id, "queue_state": "active"}
        assert len(client.result(request_id)["sequences"]) == 64


def test_a_silent_session_loses_everything(tmp_path: Path, base: Path) -> None:
    with serving(tmp_path / "store", base, "--session-ttl", "0.6") as client:
        kept, lost = client.session(), client.session()
        model = client.model(lost)
        keep = client.model(kept)
        unnamed = client.done(
            "save_weights_for_sampler",
            {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0},
        )
        sampler = unnamed["sampling_session_id"]
        assert client.done("asample", sample(sampler, [1]))["weights"].startswith("tinker://")
        files = list((tmp_path / "store" / "ephemeral").glob("*/*.npz"))
        assert len(files) == 1

        def gone() -> bool:
            client.call("session_heartbeat", {"session_id": kept})
            return client.counters()["sessions"] == 1

        until(gone)
        counted = client.counters()
        assert counted["models"] == [keep]
        assert counted["sampling"]["sampling_sessions"] == 0
        assert counted["promises"]["pending"] == 0
        assert not files[0].exists()
        for path, body in (
            ("session_heartbeat", {"session_id": lost}),
            ("optim_step", step(model, 2)),
            ("asample", sample(sampler, [1])),
            ("create_model", {"session_id": lost, "base_model": BASE_MODEL}),
        ):
            status, reason = client.refused(path, body)
            assert (status, "no heartbeat for 0.6 seconds" in reason) == (410, True), path
        assert client.refused("session_heartbeat", {"session_id": "session_x"})[0] == 404


def test_a_finished_session_ends_its_queued_work(client: Client) -> None:
    session = client.session()
    model = client.model(session)
    sampler = open_base(client, session)
    long, short = [datum([1, *range(2, 47)] * 2) for _ in range(400)], [datum([1, 2, 3])]
    queued = [
        client.call("forward_backward", backward(model, seq, data))["request_id"]
        for seq, data in enumerate((long, short, short, short), 1)
    ]
    sampled = client.call("asample", sample(sampler, [1], 120))["request_id"]
    body = {"reason": {"type": "interrupted"}, "detail": None}
    client.call(f"sessions/{session}/finish", body)
    results = [client.result(request) for request in queued]
    assert results[-1]["category"] == "user"
    assert "it was finished; this call was not executed" in results[-1]["error"]
    assert set(client.result(sampled)) & {"error", "sequences"}
    until(lambda: client.counters()["sampling"]["in_flight"] == 0)
    assert client.counters()["promises"]["pending"] == 0
    # "Not executed" is true, and what was executed says so.
    executed = sum("error" not in result for result in results)
    assert client.counters()["applied"][model].get("forward_backward", 0) == executed < 4


def test_connections_that_vanish_leave_nothing(client: Client) -> None:
    sampler = open_base(client, client.session())
    long = {**sample(sampler, [1], 120), "num_samples": 256}
    request_id = client.call("asample", long)["request_id"]
    with pytest.raises(httpx.TimeoutException), httpx.Client(trust_env=False) as other:
        other.post(
            f"{client.http.base_url}/api/v1/retrieve_future",
            json={"request_id": request_id},
            timeout=1e-3,
        )
    assert client.result(request_id)["sequences"]


async def test_promises_drop_the_oldest_and_say_so() -> None:
    clock = [0.0]
    promises = Promises(10.0, 250, now=lambda: clock[0])
    made = [promises.new() for _ in range(4)]
    for promise in made[:3]:
        promises.resolve(promise, Answer("x", b"x" * 100))
    with pytest.raises(RefusedError) as dropped:
        await promises.retrieve(made[0].request_id, 0.1)
    assert dropped.value.status == 410
    first = await promises.retrieve(made[1].request_id, 0.1)
    assert first is not None
    assert first.result == "x"
    promises.resolve(made[1], {"another": 1})  # the first answer stands
    assert await promises.retrieve(made[1].request_id, 0.1) is first
    clock[0] = 11.0
    promises.sweep()
    assert promises.counters()["finished"] == 0
    assert await promises.retrieve(made[3].request_id, 0.01) is None
    waiting = asyncio.create_task(promises.retrieve(made[3].request_id, 5))
    await asyncio.sleep(0)
    promises.resolve(made[3], Failure("no", "user"))
    answer = await waiting
    assert answer is not None
    assert answer.body(True) == (b'{"error":"no","category":"user"}', "application/json")
