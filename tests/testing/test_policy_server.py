"""The scripted policy server does what its docstring says."""

import httpx
import pytest

from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer


def call(server: ScriptedPolicyServer, endpoint: str, body: dict) -> httpx.Response:
    url = f"{server.url}/api/v1/{endpoint}"
    return httpx.post(url, json=body, trust_env=False, verify=False, timeout=5)


def result(server: ScriptedPolicyServer, endpoint: str, body: dict) -> dict:
    promise = call(server, endpoint, body).json()
    return call(server, "retrieve_future", {"request_id": promise["request_id"]}).json()


def model_of(server: ScriptedPolicyServer) -> str:
    session = call(server, "create_session", {}).json()["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "scripted"}
    return result(server, "create_model", body)["model_id"]


def step(model: str, seq: int) -> dict:
    return {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": 0.1}}


def test_samples_with_the_context_and_the_seed():
    seen = []

    def sampler(tokens, seed):
        seen.append((tokens, seed))
        return [7, 8, 2, 9], [-0.1, -0.2, -0.3, -0.4]

    with ScriptedPolicyServer(sampler=sampler) as server:
        session = call(server, "create_session", {}).json()["session_id"]
        sampling = call(
            server, "create_sampling_session", {"session_id": session, "base_model": "scripted"}
        ).json()["sampling_session_id"]
        got = result(
            server,
            "asample",
            {
                "sampling_session_id": sampling,
                "prompt": {"chunks": [{"tokens": [1, 2]}, {"tokens": [3]}]},
                "sampling_params": {"max_tokens": 3, "seed": 11, "stop": [2]},
            },
        )
    assert seen == [([1, 2, 3], 11)]
    assert got["sequences"] == [
        {"stop_reason": "stop", "tokens": [7, 8, 2], "logprobs": [-0.1, -0.2, -0.3]}
    ]
    assert got["weights"] == "scripted://base/scripted"


def test_counts_what_took_effect_not_what_was_answered():
    with ScriptedPolicyServer() as server:
        model = model_of(server)
        server.faults.add("optim_step", faults.drop_reply())
        server.faults.add("optim_step", faults.drop_request())
        for seq in (1, 2):
            with pytest.raises(httpx.TransportError):
                call(server, "optim_step", step(model, seq))
        assert len(server.requests("optim_step")) == 2
        assert server.applied("optim_step") == 1
        assert server.models[model].steps == 1


@pytest.mark.parametrize(("dedupes", "applied"), [(True, 1), (False, 2)])
def test_a_known_sequence_id(dedupes, applied):
    with ScriptedPolicyServer(dedupes=dedupes) as server:
        model = model_of(server)
        result(server, "optim_step", step(model, 1))
        result(server, "optim_step", step(model, 1))
        assert server.applied("optim_step") == applied


def test_faults_can_be_skipped_matched_and_repeated():
    with ScriptedPolicyServer() as server:
        server.faults.add("create_session", faults.status(503, "busy"), times=2, skip=1)
        codes = [call(server, "create_session", {}).status_code for _ in range(4)]
        server.faults.add(
            "create_session", faults.status(418), match=lambda body: body.get("tea") is True
        )
        coffee = call(server, "create_session", {}).status_code
        tea = call(server, "create_session", {"tea": True}).status_code
    assert codes == [200, 503, 503, 200]
    assert (coffee, tea) == (200, 418)


@pytest.mark.parametrize(
    ("snapshots", "after_step", "after_publish"),
    [
        ("immutable", "first", "first"),
        ("newest_only", "first", "second"),
        ("live", "scripted://model_1/live/1", "scripted://model_1/live/1"),
    ],
)
def test_an_old_policy_is_sampled_with_the_weights_that_such_a_server_has(
    snapshots, after_step, after_publish
):
    """Under the first snapshot: at once, after an optimizer step, after a second snapshot."""
    with ScriptedPolicyServer(snapshots=snapshots) as server:
        model = model_of(server)
        sampling = {}

        def publish(name: str, seq: int) -> str:
            body = {"model_id": model, "path": name, "seq_id": seq}
            uri = result(server, "save_weights_for_sampler", body)["path"]
            session = {"session_id": "session_1", "model_path": uri}
            created = call(server, "create_sampling_session", session).json()
            sampling[uri] = created["sampling_session_id"]
            return uri

        def used_under(uri: str) -> str:
            body = {
                "sampling_session_id": sampling[uri],
                "prompt": {"chunks": [{"tokens": [1]}]},
                "sampling_params": {"max_tokens": 3},
            }
            return result(server, "asample", body)["weights"]

        uris = {"first": publish("first", 1)}
        assert used_under(uris["first"]) == uris["first"]
        result(server, "optim_step", step(model, 2))
        stepped = used_under(uris["first"])
        uris["second"] = publish("second", 3)
        published = used_under(uris["first"])
        assert used_under(uris["second"]) == uris["second"]
    expected = [uris.get(after_step, after_step), uris.get(after_publish, after_publish)]
    assert [stepped, published] == expected
    drifted = [used for used in expected if used != uris["first"]]
    assert [(drift.asked, drift.used) for drift in server.drifts] == [
        (uris["first"], used) for used in drifted
    ]


async def test_runs_inside_an_event_loop_and_comes_back_on_the_same_port():
    server = ScriptedPolicyServer(api_key="right")
    await server.start()
    port = int(server.url.rsplit(":", 1)[1])
    await server.stop()
    await server.start(port)
    async with httpx.AsyncClient(trust_env=False) as client:
        reply = await client.post(f"{server.url}/api/v1/create_session", json={})
    await server.stop()
    assert reply.status_code == 401
