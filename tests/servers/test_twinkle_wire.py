"""What goes over the wire, field by field: the calls of twinkle-kit 0.5.1 as captured."""

import asyncio
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import SamplingParams
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import LossSpec
from mtrl_cli.servers.tinker.codec import MalformedReply
from mtrl_cli.servers.twinkle import codec
from mtrl_cli.testing import faults
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .twinkle_kit import ADAM, LOSS, SESSION, SPEC, Trained, connected, datum, trained_datum, turn

MODEL = "model/scripted/twinkle/"
SAMPLER = "sampler/scripted/twinkle/"


def only(server, endpoint):
    (request,) = server.requests(endpoint)
    return request.body


@pytest.mark.parametrize("shape", ["real", "mock"])
async def test_the_order_of_a_step_and_every_body(shape):
    async with (
        ScriptedTwinkleServer(shape=shape, sampler=lambda t, i: ([7, 2], [-0.5, -0.25])) as server,
        connected(server) as client,
    ):
        trained = await Trained.on(client)
        policy = await trained.publish()
        sampling = SamplingParams(temperature=0.7, top_k=5, top_p=0.9)
        sample = await client.sample(turn(policy, tokens=[1, 336, 201], sampling=sampling))
        result = await trained.train()
        metrics = await trained.step()
        state = await trained.save("run/a1/step-000002")
        again = await Trained.on(client)
        await again.load(state)
        await trained.unload()
        assert trained.accepted == ["req_" + "0" * 31 + "1"]

        paths = [request.endpoint for request in server.requests()]
        paths = [path for path in paths if not path.endswith("session_heartbeat")]
        setup = ["set_template", "set_processor", "set_loss", "set_optimizer"]
        made = [MODEL + call for call in ("add_adapter_to_model", *setup)]
        assert paths == [
            "twinkle/get_server_capabilities",
            "twinkle/create_session",
            MODEL + "create", SAMPLER + "create", SAMPLER + "set_template",
            *made,
            MODEL + "save", SAMPLER + "sample",
            MODEL + "forward_backward", MODEL + "clip_grad_and_step", MODEL + "calculate_metric",
            MODEL + "save",
            *made,
            MODEL + "resume_from_checkpoint",
            "model/scripted/tinker/unload_model", "retrieve_future",
        ]  # fmt: skip

        assert only(server, "twinkle/create_session") == {"metadata": None}
        assert only(server, SAMPLER + "set_template") == {
            "template_cls": "Template", "adapter_name": "", "model_id": "scripted",
        }  # fmt: skip
        added = [request.body for request in server.requests(MODEL + "add_adapter_to_model")]
        assert [body["adapter_name"] for body in added] == ["mtrl1", "mtrl2"]  # never one twice
        assert set(added[0]) == {"adapter_name", "config"}
        assert json.loads(added[0]["config"]) == {
            "r": 8, "target_modules": "all-linear", "lora_alpha": 32,
            "_TWINKLE_TYPE_": "LoraConfig",
        }  # fmt: skip
        settings = {call: server.requests(MODEL + call)[0].body for call in setup}
        assert settings == {
            "set_template": {
                "adapter_name": "mtrl1", "template_cls": "Template", "model_id": "scripted",
            },
            "set_processor": {"adapter_name": "mtrl1", "processor_cls": "InputProcessor"},
            "set_loss": {
                "adapter_name": "mtrl1", "loss_cls": "GRPOLoss",
                "epsilon": 0.2, "epsilon_high": 0.2,
            },
            "set_optimizer": {
                "adapter_name": "mtrl1", "optimizer_cls": "Adam",
                "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0,
            },
        }  # fmt: skip
        published, saved = (request.body for request in server.requests(MODEL + "save"))
        assert published == {
            "name": "run_a1_step-000001", "adapter_name": "mtrl1",
            "save_optimizer": False, "is_sampler": True,
        }  # fmt: skip
        assert saved == {
            "name": "run_a1_step-000002", "adapter_name": "mtrl1", "save_optimizer": True,
        }  # fmt: skip
        assert only(server, SAMPLER + "sample") == {
            "inputs": [{"input_ids": [1, 336, 201], "labels": [-100, -100, -100]}],
            "sampling_params": {
                "max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "stop": [2],
                "num_samples": 1, "logprobs": 1,
            },
            "adapter_name": "",
            "num_samples": 1,
            "adapter_uri": policy,
        }  # fmt: skip
        # Two trained tokens of one sequence: a mean over both, so the sum is twice the advantage.
        assert only(server, MODEL + "forward_backward") == {
            "inputs": [
                {
                    "input_ids": [1, 336, 201, 2],
                    "labels": [-100, 201, 2, -100],
                    "attention_mask": [1, 1, 1, 1],
                    "position_ids": [0, 1, 2, 3],
                    "length": 4,
                }
            ],
            "adapter_name": "mtrl1",
            "advantages": [1.0],
            "old_logps": [[-0.25, pytest.approx(-1.1)]],
        }
        assert only(server, MODEL + "clip_grad_and_step") == {
            "max_grad_norm": 1.0, "norm_type": 2, "adapter_name": "mtrl1",
        }  # fmt: skip
        assert only(server, MODEL + "calculate_metric") == {
            "is_training": True, "adapter_name": "mtrl1",
        }  # fmt: skip
        assert only(server, MODEL + "resume_from_checkpoint") == {
            "name": state, "adapter_name": "mtrl2", "resume_only_model": False,
        }  # fmt: skip
        unload = "model/scripted/tinker/unload_model"
        assert only(server, unload) == {"model_id": f"{SESSION}-mtrl1"}

        assert (sample.tokens, sample.logprobs) == ([7, 2], [-0.5, -0.25])
        assert (sample.stop_reason, sample.echo) == ("stop", [1, 336, 201, 7, 2])
        assert policy.startswith(f"twinkle://{SESSION}-mtrl1/sampler_weights/")
        assert state == f"twinkle://{SESSION}-mtrl1/weights/run_a1_step-000002"
        [row] = result.logprobs
        assert row.tolist() == [0.0, -0.25, np.float32(-1.1)]
        assert result.loss == {"real": -1.0, "mock": 0.637}[shape]
        assert metrics["grad_norm"] == {"real": 0.599972, "mock": 0.1}[shape]
        assert "total time elapse" not in metrics
        assert server.slots == {again.model}


async def test_every_request_says_who_it_is_and_where_its_adapter_lives():
    async with ScriptedTwinkleServer() as server, connected(server, key="mine") as client:
        trained = await Trained.on(client)
        policy = await trained.publish()
        await client.sample(turn(policy))
        await trained.train()
        while not server.requests("twinkle/session_heartbeat"):
            await asyncio.sleep(0.01)
        for request in server.requests():
            headers = request.headers
            assert headers["Authorization"] == headers["Twinkle-Authorization"] == "Bearer mine"
            routing = headers["serve_multiplexed_model_id"]
            assert headers["X-Request-ID"] == routing
            if request.endpoint in ("twinkle/get_server_capabilities", "twinkle/create_session"):
                assert re.fullmatch(r"\d{8}_\d{6}-[0-9a-f]{8}", routing)
                assert "X-Twinkle-Session-Id" not in headers
            else:
                assert headers["X-Twinkle-Session-Id"] == routing == SESSION


async def test_an_adapter_of_another_process_is_unloaded_on_its_own_route():
    async with ScriptedTwinkleServer() as server:
        async with connected(server) as first:
            trained = await Trained.on(first)
        async with connected(server) as second:
            assert server.slots == {trained.model}
            await second.execute(second.unload_model(trained.model), lambda _: None)
        [request] = server.requests("model/scripted/tinker/unload_model")
        assert request.headers["serve_multiplexed_model_id"] == first.session != second.session
        assert server.slots == set()


async def test_without_a_token_the_official_placeholder_is_sent():
    async with ScriptedTwinkleServer() as server, connected(server, key=None):
        assert server.requests()[0].headers["Authorization"] == "Bearer EMPTY_TOKEN"


async def test_the_base_model_is_sampled_without_an_adapter():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        await client.sample(turn(await client.base_policy()))
        assert "adapter_uri" not in only(server, SAMPLER + "sample")
        assert server.base_samples == 1


async def test_tempered_tokens_are_trained_at_their_temperature():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        await trained.train(loss=replace(LOSS, temperature=0.7))
        assert only(server, MODEL + "forward_backward")["temperature"] == 0.7


async def test_megatron_gets_one_sequence_a_micro_batch_and_decoupled_decay_by_its_own_name():
    adam = replace(ADAM, weight_decay=0.1)
    async with ScriptedTwinkleServer() as server:
        async with connected(server, backend="megatron") as client:
            await (await Trained.on(client, adam=adam)).train()
        async with connected(server) as client:
            await (await Trained.on(client, adam=adam)).train()
    bodies = [request.body for request in server.requests(MODEL + "forward_backward")]
    assert [body.get("micro_batch_size") for body in bodies] == [1, None]
    chosen = [request.body for request in server.requests(MODEL + "set_optimizer")]
    assert [body["optimizer_cls"] for body in chosen] == ["Adam", "AdamW"]
    assert [body["weight_decay"] for body in chosen] == [0.1, 0.1]


async def test_a_learning_rate_that_moves_goes_with_the_step_and_no_clipping_clips_nothing():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        await trained.step()
        await trained.step(replace(ADAM, learning_rate=0.005, grad_clip_norm=0.0))
        await trained.step(replace(ADAM, learning_rate=0.005))
        await trained.load(await trained.save())  # the checkpoint brings an optimizer of its own
        await trained.step(replace(ADAM, learning_rate=0.005))
    bodies = [request.body for request in server.requests(MODEL + "clip_grad_and_step")]
    moved = {"lr": 0.005, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}
    assert [body.get("optim_params") for body in bodies] == [None, moved, None, moved]
    assert [body["max_grad_norm"] for body in bodies] == [1.0, 1e9, 1.0, 1.0]


@pytest.mark.parametrize(
    ("loss", "sent"),
    [
        (
            LossSpec("importance_sampling", {}),
            {"loss_cls": "GRPOLoss", "epsilon": 1e9, "epsilon_high": 1e9},
        ),
        (
            LossSpec("ppo", {"clip_low_threshold": 0.7, "clip_high_threshold": 1.28}),
            {"loss_cls": "GRPOLoss", "epsilon": 0.3, "epsilon_high": 0.28},
        ),
        (LossSpec("gspo", {}), {"loss_cls": "GSPOLoss", "epsilon": 0.2, "epsilon_high": 0.2}),
        (
            LossSpec("sapo", {"tau_neg": 1.05}),
            {"loss_cls": "SAPOLoss", "tau_pos": 1.0, "tau_neg": 1.05},
        ),
        (
            LossSpec("cispo", {"clip_high_threshold": 1.5}),
            {"loss_cls": "CISPOLoss", "epsilon": 0.5},
        ),
    ],
)
async def test_losses_by_twinkles_names(loss, sent):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client, loss=loss)
        await trained.train(loss=loss)
        assert only(server, MODEL + "set_loss") == {"adapter_name": "mtrl1", **sent}


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (LossSpec("dro", {}), "train.loss: Twinkle does not compute 'dro'; write one of cispo"),
        (
            LossSpec("cispo", {"clip_low_threshold": 0.8}),
            "clip_low_threshold: Twinkle's cispo has no such parameter; allowed: clip_high",
        ),
        (LossSpec("ppo", {"clip_low_threshold": 1.1}), "needs low ≤ 1 ≤ high"),
        (LossSpec("cispo", {"clip_high_threshold": 0.5}), "write at least 1"),
    ],
)
async def test_losses_that_twinkle_has_not(loss, says):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        with pytest.raises(UsageError, match=re.escape(says)):
            client.create_model(replace(SPEC, loss=loss))
        assert server.applied() == 0


async def test_a_model_that_is_not_served():
    async with ScriptedTwinkleServer(base_model="Qwen/Qwen3-4B") as server:
        with pytest.raises(UsageError, match=r"'scripted' is not served by .*: Qwen/Qwen3-4B"):
            async with connected(server):
                pass


async def test_another_server():
    async with ScriptedTwinkleServer() as server:
        server.faults.add("twinkle/create_session", faults.status(404, {"detail": "Not Found"}))
        with pytest.raises(ServerError, match="is no Twinkle server with this model"):
            async with connected(server):
                pass


# --- replies ----------------------------------------------------------------------------------


def reply_of(**sequence):
    whole = {
        "stop_reason": "stop",
        "tokens": [5, 2],
        "logprobs": [[[5, -0.5]], [[2, -0.25]]],
        "decoded": "x",
        "new_input_feature": {"input_ids": [1, 5, 2], "labels": [5, 2, -100]},
    }
    return {"samples": [{"sequences": [{**whole, **sequence}], "prompt_logprobs": None}]}


def test_logprobs_are_found_by_the_sampled_token_and_missing_ones_stay_missing():
    [sample] = codec.samples_of(
        reply_of(logprobs=[[[9, -0.1], [5, -0.5]], [[3, -0.2]]]), 1
    )  # the best token first, and then not even the sampled one
    assert sample.logprobs[0] == -0.5
    assert math.isnan(sample.logprobs[1])
    [sample] = codec.samples_of(reply_of(logprobs=None), 1)
    assert sample.logprobs == []
    [sample] = codec.samples_of(reply_of(logprobs=[[[5, -0.5]]] * 3), 1)
    assert len(sample.logprobs) == 3
    [sample] = codec.samples_of(reply_of(logprobs=[[[5, None]], [[2, "-0.25"]]]), 1)
    assert math.isnan(sample.logprobs[0])
    assert sample.logprobs[1] == -0.25


@pytest.mark.parametrize("absent", [{}, {"images": None, "videos": []}])
def test_media_fields_may_be_absent_or_empty(absent):
    [sample] = codec.samples_of(reply_of(new_input_feature={"input_ids": [1, 5, 2], **absent}), 1)
    assert sample.echo == [1, 5, 2]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (reply_of(new_input_feature={"input_ids": [1], "images": ["a.png"]}), "text only"),
        (reply_of(stop_reason="abort"), "not 'stop' or 'length'"),
        (reply_of(tokens=[5, -1]), "out of range"),
        (reply_of(tokens=[5, "2"]), "not a list of integers"),
        (reply_of(logprobs=[[[5, "x"]], [[2, 0]]]), "a logprob is not a number"),
        ({"samples": []}, "expected 1 samples"),
        ({"samples": [{"sequences": []}]}, "expected one sequence"),
    ],
)
def test_samples_that_cannot_be_read(reply, says):
    with pytest.raises(MalformedReply, match=re.escape(says)):
        codec.samples_of(reply, 1)


def test_the_trainers_logprobs_in_every_shape():
    data = [trained_datum([1, 2, 3, 4], [2, 3], 1.0), trained_datum([1, 2, 3], [2], 1.0)]
    rows = [[-9.0, -1.0, -2.0, -9.0], [-9.0, -3.0, -9.0, -9.0]]
    shapes = [
        {"logits": None, "logps": rows, "loss": 0.5},
        {"logps": [[rows[0]], [rows[1][:3]]], "loss": "0.5"},  # one tensor a micro-batch
        {"logps": rows, "loss": [0.5]},
        [[{"logprobs": row, "loss": 1.0} for row in rows], 0.5],
    ]
    for shape in shapes:
        result = codec.forward_backward_of({"result": shape}, data)
        assert result.loss == 0.5
        assert [row.tolist() for row in result.logprobs] == [[0.0, -1.0, -2.0], [0.0, -3.0]]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"logps": [[-1.0] * 3]}, "no loss in the result"),
        ({"logps": None, "loss": 0.0}, "no logps in the result"),
        ({"logps": [], "loss": 0.0}, "0 rows of logprobs came back for 1"),
        ({"logps": [[-1.0, -1.0]], "loss": 0.0}, "shorter than its 3 targets"),
        (None, "no loss in the result"),
    ],
)
def test_results_that_cannot_be_read(result, says):
    with pytest.raises(MalformedReply, match=re.escape(says)):
        codec.forward_backward_of({"result": result}, [datum()])


def test_a_loss_of_null_is_no_number():
    result = codec.forward_backward_of({"result": {"logps": [[-1.0] * 4], "loss": None}}, [datum()])
    assert math.isnan(result.loss)
