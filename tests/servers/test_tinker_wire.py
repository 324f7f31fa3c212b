"""What goes over the wire, field by field: the JSON generation of the API as captured."""

import asyncio
import hashlib
import json
import math
from array import array
from dataclasses import replace

import numpy as np
import pytest

from mtrl_cli.rollout.ports import PolicyFailure, SamplingParams
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import LossSpec
from mtrl_cli.servers.tinker import codec
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer

from .calls import ADAM, SPEC, Trained, datum, turn


def only(server, endpoint):
    (request,) = server.requests(endpoint)
    return request


async def test_the_order_of_a_step_and_every_body(connect):
    async with ScriptedPolicyServer(sampler=lambda t, s: ([7, 2], [-0.5, -0.25])) as server:
        client = await connect(server, key="tml-secret")
        run, ids = client.execute, []
        model = await run(client.create_model(SPEC), ids.append)
        policy = await run(client.publish(model, 1, "run/a1/step-000001"), ids.append)
        sampling = SamplingParams(temperature=0.7, top_k=5, top_p=0.9)
        sample = await client.sample(turn(policy, tokens=[1, 336, 201], sampling=sampling))
        result = await run(
            client.forward_backward(
                model, 2, [datum()], LossSpec("ppo", {"clip_low_threshold": 0.8})
            ),
            ids.append,
        )
        metrics = await run(client.optim_step(model, 3, ADAM), ids.append)
        state = await run(client.save_state(model, 4, "run/a1/state"), ids.append)
        again = await run(client.create_model(SPEC), ids.append)
        assert await run(client.load_state(again, 1, state), ids.append) is None
        assert await run(client.unload_model(model), ids.append) is None

        assert only(server, "create_session").body == {
            "tags": [],
            "user_metadata": {},
            "sdk_version": "0.16.1",
            "project_id": None,
        }
        first, second = (request.body for request in server.requests("create_model"))
        assert first == {
            "session_id": "session_1",
            "model_seq_id": 0,
            "base_model": "scripted",
            "user_metadata": None,
            "lora_config": {
                "rank": 8,
                "seed": 7,
                "train_unembed": True,
                "train_mlp": True,
                "train_attn": True,
            },
        }
        assert second["model_seq_id"] == 1
        assert only(server, "save_weights_for_sampler").body == {
            "model_id": "model_1",
            "path": "run/a1/step-000001",
            "seq_id": 1,
        }
        assert only(server, "create_sampling_session").body == {
            "session_id": "session_1",
            "sampling_session_seq_id": 0,
            "model_path": policy,
        }
        assert only(server, "asample").body == {
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 336, 201]}]},
            "sampling_params": {
                "max_tokens": 8,
                "seed": 11,
                "stop": [2],
                "temperature": 0.7,
                "top_k": 5,
                "top_p": 0.9,
            },
            "sampling_session_id": "sampling_1",
            "seq_id": 0,
            "prompt_logprobs": False,
        }
        sent = only(server, "forward_backward").body
        assert sent == {
            "forward_backward_input": {
                "data": [
                    {
                        "model_input": {
                            "chunks": [{"type": "encoded_text", "tokens": [1, 336, 201]}]
                        },
                        "loss_fn_inputs": {
                            "target_tokens": {
                                "data": [336, 201, 2],
                                "dtype": "int64",
                                "shape": [3],
                            },
                            "logprobs": {
                                "data": [0, -0.25, pytest.approx(-1.1, rel=1e-7)],
                                "dtype": "float32",
                                "shape": [3],
                            },
                            "advantages": {
                                "data": [0, 0.5, 0.5],
                                "dtype": "float32",
                                "shape": [3],
                            },
                        },
                    }
                ],
                "loss_fn": "ppo",
                "loss_fn_config": {"clip_low_threshold": 0.8},
            },
            "model_id": "model_1",
            "seq_id": 2,
        }
        assert only(server, "optim_step").body == {
            "adam_params": {
                "learning_rate": 0.01,
                "beta1": 0.9,
                "beta2": 0.95,
                "eps": 1e-8,
                "weight_decay": 0.0,
                "grad_clip_norm": 1.0,
            },
            "model_id": "model_1",
            "seq_id": 3,
        }
        assert only(server, "save_weights").body == {
            "model_id": "model_1",
            "path": "run/a1/state",
            "seq_id": 4,
        }
        assert only(server, "load_weights").body == {
            "model_id": "model_2",
            "path": state,
            "optimizer": True,
            "seq_id": 1,
        }
        assert only(server, "unload_model").body == {"model_id": "model_1"}
        posted = [r for r in server.requests() if r.endpoint != "get_server_capabilities"]
        assert {request.headers["X-API-Key"] for request in posted} == {"tml-secret"}
        assert {request.headers["Content-Type"] for request in posted} == {"application/json"}
        polled = [request.body for request in server.requests("retrieve_future")]
        assert {"request_id": ids[0]} in polled

    assert (sample.tokens, sample.logprobs) == ([7, 2], [-0.5, -0.25])
    assert (sample.stop_reason, sample.policy) == ("stop", policy)
    assert result.loss == pytest.approx(0.5 * (0.25 + 1.1))
    assert np.array_equal(result.logprobs[0], datum().logprobs)
    assert result.logprobs[0].dtype == np.float32
    assert metrics == {"steps": 1.0}
    assert len(ids) == len(set(ids)) == 8


async def test_a_call_is_complete_before_it_is_sent(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        call = client.optim_step("m", 3, ADAM)
        assert (call.kind, call.path, call.model, call.seq) == ("optim_step", "optim_step", "m", 3)
        assert call.digest == hashlib.sha256(call.body).hexdigest()
        assert client.publish("m", 1, "x").path == "save_weights_for_sampler"
        assert server.requests("optim_step") == []


async def test_a_request_is_named_before_its_result_is_awaited(connect):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server)).prepare()
        before = len(server.requests("retrieve_future"))
        seen = []

        def accepted(request_id):
            seen.append((request_id, len(server.requests("retrieve_future")) - before))

        await trained.client.execute(trained.call("optim_step"), accepted)
        assert seen == [("3", 0)]


async def test_full_training_leaves_the_adapter_out(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        call = client.create_model(replace(SPEC, lora_rank=None))
        assert "lora_config" not in json.loads(call.body)
        other = json.loads(client.create_model(replace(SPEC, lora_alpha=16.0)).body)
        assert other["lora_config"]["alpha"] == 16.0


async def test_one_sampling_session_per_policy_however_many_ask(connect):
    async with ScriptedPolicyServer(sample_seconds=0.01) as server:
        client = await connect(server)
        base = await client.base_policy()
        await asyncio.gather(*(client.sample(turn(base, seed=i)) for i in range(40)))
        await client.sample(turn(base))
        assert only(server, "create_sampling_session").body["base_model"] == "scripted"
        assert sorted(r.body["seq_id"] for r in server.requests("asample")) == list(range(41))


async def test_a_server_may_answer_with_the_result(connect):
    async with ScriptedPolicyServer(inline=True) as server:
        client = await connect(server)
        base = await client.base_policy()
        assert (await client.sample(turn(base))).tokens == [2]
        assert only(server, "asample").headers["Prefer"] == "wait=30"
        assert server.requests("retrieve_future") == []
        assert client.counts.polls == 0
    async with ScriptedPolicyServer(inline=True, sample_seconds=0.1, poll_seconds=0.05) as server:
        client = await connect(server)
        assert (await client.sample(turn(await client.base_policy()))).tokens == [2]
        assert client.counts.polls > 0


async def test_who_asked_first_may_leave(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        server.faults.add("create_sampling_session", faults.delay(0.1))
        base = await client.base_policy()
        first = asyncio.create_task(client.sample(turn(base)))
        await asyncio.sleep(0.03)
        second = asyncio.create_task(client.sample(turn(base)))
        await asyncio.sleep(0.03)
        first.cancel()
        assert (await second).tokens == [2]
        assert len(server.requests("create_sampling_session")) == 1


async def test_an_unknown_policy_fails_for_good_and_names_itself(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        with pytest.raises(PolicyFailure, match="scripted://gone: HTTP 404") as caught:
            await client.sample(turn("scripted://gone"))
        assert caught.value.permanent
        assert len(server.requests("create_sampling_session")) == 1


async def test_the_weights_reported_are_the_policys(connect):
    async with ScriptedPolicyServer() as server:
        client = await connect(server)
        base = await client.base_policy()
        assert base == "base://scripted"
        assert (await client.sample(turn(base))).policy == base
        server.faults.add(
            "retrieve_future",
            faults.body({
                "sequences": [{"tokens": [1], "logprobs": [-1.0], "stop_reason": "length"}],
                "weights": "scripted://model_9/sampler_weights/other",
            }),
        )  # fmt: skip
        assert (await client.sample(turn(base))).policy == (
            "scripted://model_9/sampler_weights/other"
        )
    async with ScriptedPolicyServer(reports_weights=False) as server:
        client = await connect(server)
        assert (await client.sample(turn(await client.base_policy()))).policy is None


@pytest.mark.parametrize(
    "sequence",
    [
        {"tokens": [], "logprobs": [], "stop_reason": "stop"},
        {"tokens": [1, 2], "logprobs": [-0.5], "stop_reason": "stop"},
        {"tokens": [1], "logprobs": [0.5], "stop_reason": "length"},
        {"tokens": [1], "logprobs": [float("nan")], "stop_reason": "length"},
        {"tokens": [1, 2], "logprobs": [-1, None], "stop_reason": "length"},
        {"tokens": [1], "stop_reason": "length"},
    ],
)
async def test_what_the_server_sampled_arrives_untouched(connect, sequence):
    """Whether it can be trained on is the trajectory's question."""
    async with ScriptedPolicyServer(sampler=lambda t, s: sequence) as server:
        client = await connect(server)
        sample = await client.sample(turn(await client.base_policy()))
    assert sample.tokens == sequence["tokens"]
    expected = [math.nan if v is None else v for v in sequence.get("logprobs", [])]
    assert np.array_equal(sample.logprobs, expected, equal_nan=True)
    assert sample.stop_reason == sequence["stop_reason"]


@pytest.mark.parametrize(
    "returned",
    [[None, -0.5, -0.25], [float("nan"), -0.5, -0.25], [-9.0, -0.5, -0.25], [-0.5, -0.25]],
)
async def test_logprobs_of_given_tokens(connect, returned):
    async with ScriptedPolicyServer(prompt_logprobs=lambda t, p: returned) as server:
        client = await connect(server)
        logprobs = await client.logprobs(await client.base_policy(), [4, 5, 6])
        body = only(server, "asample").body
    assert body["prompt_logprobs"] is True
    assert body["sampling_params"]["max_tokens"] == 1
    assert math.isnan(logprobs[0])
    assert logprobs[1:].tolist() == [-0.5, -0.25]
    assert logprobs.dtype == np.float32


async def test_logprobs_that_are_none_are_asked_for_again(connect):
    returned = [[None, -0.5], [None], [None, -0.5, -0.25]]
    async with ScriptedPolicyServer(prompt_logprobs=lambda t, p: returned.pop(0)) as server:
        client = await connect(server)
        logprobs = await client.logprobs(await client.base_policy(), [4, 5, 6])
        asked = server.requests("asample")
    assert logprobs[1:].tolist() == [-0.5, -0.25]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([None, -0.5], "2 prompt logprobs|not finite"),
        ([-0.5], "1 prompt logprobs came back for 3 tokens"),
        ([None, -0.5, None], "not finite"),
        ([None, -0.5, float("-inf")], "not finite"),
        ([None, "x", -1.0], "other than numbers"),
    ],
)
async def test_wrong_logprobs_are_refused(connect, returned, says):
    async with ScriptedPolicyServer(prompt_logprobs=lambda t, p: returned) as server:
        client = await connect(server)
        with pytest.raises(ServerError, match=says):
            await client.logprobs(await client.base_policy(), [4, 5, 6])


@pytest.mark.parametrize(
    ("ids", "width"),
    [([0, 9, 999], 4), ([0, 1000], 8), ([2**20 - 1, 3], 8), ([2**20, 3], 0), ([2**31 - 1, 0], 0)],
)
@pytest.mark.parametrize("made", [list, tuple, lambda x: array("i", x), np.array])
def test_token_text(ids, width, made):
    text = codec.token_text(made(ids))
    assert json.loads(b"[" + text + b"]") == ids
    assert not width or len(text) == width * len(ids) - 1


def test_token_text_of_nothing_and_of_negatives():
    assert codec.token_text([]) == b""
    with pytest.raises(ValueError, match="-1 is negative"):
        codec.token_text([3, -1])


def test_tokens_stay_a_growing_array_after_encoding():
    ids = array("i", [1, 2, 3])
    codec.token_text(ids)
    ids.extend([4])  # raises if a view were still exported
    assert json.loads(b"[" + codec.token_text(ids) + b"]") == [1, 2, 3, 4]


def test_floats_survive_the_wire_exactly():
    values = np.random.default_rng(0).normal(size=500).astype(np.float32)
    values[::3] = 0
    tensor = replace(datum(), logprobs=values)
    body = codec.forward_backward_body("m", 1, [tensor], LossSpec("ppo", {}))
    sent = json.loads(body)["forward_backward_input"]
    data = sent["data"][0]["loss_fn_inputs"]["logprobs"]["data"]
    assert np.array_equal(np.array(data, dtype=np.float32), values)
    assert sent["loss_fn_config"] is None


def test_the_loss_where_a_server_does_not_sum_it():
    reply = {
        "loss_fn_outputs": [
            {
                "elementwise_loss": {"data": [0.5, 0.25], "dtype": "float32", "shape": [2]},
                "logprobs": {"data": [-0.5, -0.25], "dtype": "float32", "shape": [2]},
            }
        ],
        "metrics": {},
    }
    assert codec.forward_backward_of(reply).loss == 0.75
    del reply["loss_fn_outputs"][0]["elementwise_loss"]
    with pytest.raises(codec.MalformedReply, match="holds no loss"):
        codec.forward_backward_of(reply)


async def test_a_large_batch_is_sent_whole(connect):
    n = 60_000
    big = replace(
        datum(),
        tokens=np.arange(n, dtype=np.int32),
        targets=np.arange(n, dtype=np.int32),
        logprobs=np.full(n, -0.5, dtype=np.float32),
        advantages=np.ones(n, dtype=np.float32),
    )
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server)).prepare()
        call = trained.client.forward_backward(trained.model, 2, [big], LossSpec("ppo", {}))
        await trained.client.execute(call, trained.accepted.append)
        request = only(server, "forward_backward")
        assert request.raw == call.body
        assert request.headers["Content-Length"] == str(len(call.body))
        await trained.client.sample(
            turn(await trained.client.base_policy(), tokens=np.arange(n, dtype=np.int32))
        )
