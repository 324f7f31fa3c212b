"""JSON and protobuf say the same, and a session finds out which of them its server reads."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mtrl_cli.servers.errors import Refused, Unknown
from mtrl_cli.servers.interface import LossSpec
from mtrl_cli.servers.tinker import codec as tinker_codec
from mtrl_cli.servers.tinker import protobuf as tinker_protobuf
from mtrl_cli.servers.tinker.codec import MalformedReply
from mtrl_cli.servers.tinker.formats import Formats, Packed, unpacked
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.wire import tinker_messages as wire

from .calls import LOSS, Trained, datum, turn

PROTOBUF = "application/x-protobuf"


# --- bytes ----------------------------------------------------------------------------------


def test_the_bytes_of_a_pass():
    """Against bytes put together by hand from the API's field numbers."""
    body = tinker_protobuf.forward_backward_body("m", 2, [datum()], LossSpec("ppo", {"c": 0.5}))

    def field(number: int, payload: bytes) -> bytes:
        size, long = len(payload), len(payload) > 127
        length = [size & 127 | 128, size >> 7] if long else [size]
        return bytes([number << 3 | 2, *length]) + payload

    def tensor(data: bytes, dtype: int) -> bytes:
        return field(1, data) + bytes([3 << 3, dtype]) + field(4, bytes([3]))

    def entry(name: bytes, value: bytes) -> bytes:
        return field(2, field(1, name) + field(2, value))

    tokens = np.array([1, 336, 201], "<i4").tobytes()
    arrays = {
        b"advantages": tensor(np.array([0, 0.5, 0.5], "<f4").tobytes(), 1),
        b"logprobs": tensor(np.array([0, -0.25, -1.1], "<f4").tobytes(), 1),
        b"target_tokens": tensor(np.array([336, 201, 2], "<i8").tobytes(), 2),
    }
    sent = field(1, field(1, field(1, tokens)))
    sent += b"".join(entry(name, value) for name, value in arrays.items())
    number = np.array([0.5], "<f8").tobytes()
    assert body == (
        field(1, b"m")
        + bytes([2 << 3, 2])
        + field(3, sent)
        + field(4, b"ppo")
        + field(5, field(1, b"c") + bytes([2 << 3 | 1]) + number)
    )


def test_a_pass_may_be_told_to_leave_no_gradient():
    body = tinker_protobuf.forward_backward_body("m", 1, [datum()], LOSS, forward_only=True)
    assert wire.read("ForwardBackwardRequest", body).forward_only is True


def test_what_is_not_finite_is_not_written():
    broken = replace(datum(), advantages=np.array([0, np.nan, 1], dtype=np.float32))
    with pytest.raises(ValueError, match="not finite"):
        tinker_protobuf.forward_backward_body("m", 1, [broken], LOSS)


def outputs(rows, dtype=wire.FLOAT32, key="logprobs", **metrics) -> bytes:
    message = wire.new("ForwardBackwardOutput")
    record = message.loss_fn_outputs.add()
    batched = record.fields[key]
    parts = [
        (row.view(np.uint32) >> 16).astype("<u2").tobytes() if dtype == 4 else row.tobytes()
        for row in (np.array(row, "<f4") for row in rows)
    ]
    batched.data = b"".join(parts)
    batched.offsets = np.cumsum([0, *map(len, parts)]).astype("<i8").tobytes()
    batched.dtype = dtype
    for name, value in metrics.items():
        message.metrics[name.replace("_", ":")] = value
    return message.SerializeToString()


def test_the_rows_of_a_batch_are_cut_apart():
    result = tinker_protobuf.forward_backward_of(outputs([[-1, -2], [], [-3]], loss_sum=4.0))
    assert [row.tolist() for row in result.logprobs] == [[-1, -2], [], [-3]]
    assert result.loss == 4.0
    halves = tinker_protobuf.forward_backward_of(outputs([[-1.5, -2], [-3]], dtype=4, loss_sum=1.0))
    assert [row.tolist() for row in halves.logprobs] == [[-1.5, -2.0], [-3.0]]


def test_the_loss_where_a_server_does_not_sum_it():
    message = wire.read("ForwardBackwardOutput", outputs([[0.5, 0.25]], key="elementwise_loss"))
    message.loss_fn_outputs[0].fields["logprobs"].CopyFrom(
        message.loss_fn_outputs[0].fields["elementwise_loss"]
    )
    assert tinker_protobuf.forward_backward_of(message.SerializeToString()).loss == 0.75
    with pytest.raises(MalformedReply, match="holds no loss"):
        tinker_protobuf.forward_backward_of(outputs([[-1]]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b.__setattr__("offsets", np.array([0, 4, 99], "<i8").tobytes()),
        lambda b: b.__setattr__("offsets", np.array([0, 6, 4, 8], "<i8").tobytes()),
        lambda b: b.__setattr__("offsets", np.array([4, 8], "<i8").tobytes()),
        lambda b: b.__setattr__("offsets", b""),
        lambda b: b.__setattr__("offsets", b"123"),
        lambda b: b.__setattr__("data", b"12345"),
        lambda b: b.__setattr__("dtype", 9),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(spoil):
    message = wire.read("ForwardBackwardOutput", outputs([[-1], [-2]], loss_sum=1.0))
    spoil(message.loss_fn_outputs[0].fields["logprobs"])
    with pytest.raises(MalformedReply):
        tinker_protobuf.forward_backward_of(message.SerializeToString())


@pytest.mark.parametrize("body", [b"{}", b"\xff\xff\xff", b""])
def test_what_is_no_sample_is_refused(body):
    with pytest.raises(MalformedReply):
        tinker_protobuf.sample_of(body)
    with pytest.raises(MalformedReply):
        unpacked(Packed(body))


@pytest.mark.parametrize(
    ("field", "value"), [("tokens", b"123"), ("logprobs", b"1"), ("stop_reason", 7)]
)
def test_a_sample_that_cannot_be_read_is_refused(field, value):
    message = wire.new("SampleResponse")
    sequence = message.sequences.add()
    sequence.tokens = np.array([1], "<i4").tobytes()
    setattr(sequence, field, value)
    with pytest.raises(MalformedReply):
        tinker_protobuf.sample_of(message.SerializeToString())


def test_a_missing_logprob_stays_missing():
    message = wire.new("SampleResponse")
    sequence = message.sequences.add()
    sequence.stop_reason = wire.LENGTH
    sequence.tokens = np.array([4, 5], "<i4").tobytes()
    sample = tinker_protobuf.sample_of(message.SerializeToString())
    assert (sample.tokens, sample.logprobs, sample.stop_reason) == ([4, 5], [], "length")
    assert sample.policy is None


# --- a session ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "formats"),
    [("json", "json"), ("json", "both"), ("protobuf", "protobuf"), ("protobuf", "both")],
)
async def test_both_say_the_same(connect, codec, formats):
    async with ScriptedPolicyServer(
        sampler=lambda t, s: ([7, 2], [-0.5, -0.25]),
        prompt_logprobs=lambda t, p: [None, -0.5, -0.25],
        formats=formats,
    ) as server:
        client = await connect(server, codec=codec)
        trained = await Trained(client).prepare("forward_backward")
        result = await trained.execute("forward_backward")
        policy = await client.base_policy()
        sample = await client.sample(turn(policy))
        logprobs = await client.logprobs(policy, [4, 5, 6])
        assert await trained.execute("optim_step", 3) == {"steps": 1.0}

        [request] = server.requests("forward_backward")
        wanted = tinker_codec.forward_backward_body("model_1", 2, [datum()], LOSS)
        sent, expected = request.body, json.loads(wanted)
        tensors = [
            body["forward_backward_input"]["data"][0].pop("loss_fn_inputs")
            for body in (sent, expected)
        ]
        assert sent == expected
        for name, tensor in tensors[1].items():
            got = tensors[0][name]
            assert (got["dtype"], got["shape"]) == (tensor["dtype"], tensor["shape"])
            assert np.array_equal(
                np.array(got["data"], np.float32), np.array(tensor["data"], np.float32)
            )
        polls = {r.headers["Accept"] for r in server.requests("retrieve_future")}
        assert polls == {PROTOBUF if codec == "protobuf" else "application/json"}
        asked = server.requests("asample")[0]
        assert asked.headers["Content-Type"] == "application/json"
        assert asked.body["sampling_params"]["stop"] == [2]

    assert result.loss == pytest.approx(0.5 * (0.25 + 1.1))
    assert np.array_equal(result.logprobs[0], datum().logprobs)
    assert (sample.tokens, sample.logprobs, sample.stop_reason) == ([7, 2], [-0.5, -0.25], "stop")
    assert np.isnan(logprobs[0])
    assert logprobs[1:].tolist() == [-0.5, -0.25]


async def test_the_format_is_found_out_once(connect):
    async with ScriptedPolicyServer(formats="protobuf") as server:
        trained = await Trained(await connect(server, codec="auto")).prepare("forward_backward")
        for seq in (2, 3):
            await trained.execute("forward_backward", seq)
        types = [r.headers["Content-Type"] for r in server.requests("forward_backward")]
        assert types == ["application/json", PROTOBUF, PROTOBUF]
        assert [call.seq for call in server.applications()[1:]] == [2, 3]
        assert len(trained.accepted) == 2
    async with ScriptedPolicyServer(formats="json") as server:
        trained = await Trained(await connect(server, codec="auto")).prepare("forward_backward")
        await trained.execute("forward_backward", 2)
        assert trained.call("forward_backward", 3).rewritten is None


@pytest.mark.parametrize("status", [415, 422])
async def test_a_refusal_of_both_formats_says_the_first_reason_and_is_not_remembered(
    connect, status
):
    async with ScriptedPolicyServer(formats="both") as server:
        trained = await Trained(await connect(server, codec="auto")).prepare("forward_backward")
        server.faults.add("forward_backward", faults.status(status, {"detail": "no loss 'ppo'"}))
        server.faults.add("forward_backward", faults.status(415, {"detail": "what is this"}))
        with pytest.raises(Refused, match="no loss 'ppo'"):
            await trained.execute("forward_backward")
        assert len(server.requests("forward_backward")) == 2
        await trained.execute("forward_backward")
        types = [r.headers["Content-Type"] for r in server.requests("forward_backward")]
        assert types == ["application/json", PROTOBUF, "application/json"]
        assert server.applied("forward_backward") == 1


@pytest.mark.parametrize("codec", ["json", "protobuf"])
async def test_a_configured_format_is_never_left(connect, codec):
    other = "json" if codec == "protobuf" else "protobuf"
    async with ScriptedPolicyServer(formats=other) as server:
        trained = await Trained(await connect(server, codec=codec)).prepare("forward_backward")
        with pytest.raises(Refused, match="415"):
            await trained.execute("forward_backward")
        assert len(server.requests("forward_backward")) == 1


@pytest.mark.parametrize(
    "fault", [faults.drop_reply(), faults.drop_request(), faults.status(500, "boom")]
)
async def test_a_pass_of_unknown_outcome_is_not_written_in_the_other_format(connect, fault):
    async with ScriptedPolicyServer(formats="both") as server:
        trained = await Trained(await connect(server, codec="auto")).prepare("forward_backward")
        server.faults.add("forward_backward", fault)
        with pytest.raises(Unknown):
            await trained.execute("forward_backward")
        assert len(server.requests("forward_backward")) == 1


async def test_after_a_lost_reply_no_refusal_leads_to_the_other_format(connect):
    """Sent again to a server that dedupes: its 422 does not say what became of the first."""
    async with ScriptedPolicyServer(formats="both") as server:
        client = await connect(server, codec="auto", dedupes=True)
        trained = await Trained(client).prepare("forward_backward")
        server.faults.add("forward_backward", faults.drop_reply())
        server.faults.add("forward_backward", faults.status(422))
        with pytest.raises(Unknown):
            await trained.execute("forward_backward")
        types = [r.headers["Content-Type"] for r in server.requests("forward_backward")]
        assert types == ["application/json"] * 2


async def test_the_digest_is_the_same_in_both(connect):
    async with ScriptedPolicyServer() as server:
        one = (await connect(server, codec="json")).forward_backward("m", 1, [datum()], LOSS)
        two = (await connect(server, codec="protobuf")).forward_backward("m", 1, [datum()], LOSS)
        assert one.digest == two.digest
        assert one.body != two.body
        three = (await connect(server)).forward_backward("m", 2, [datum()], LOSS)
        assert three.digest != one.digest


@pytest.mark.parametrize(
    ("wide", "name", "seed"),
    [(True, "20261129-1/a2/step-000012", 2**40 + 5), (False, "20261129-1-a2-step-000012", 5)],
)
async def test_names_and_seeds_are_what_the_server_takes(connect, wide, name, seed):
    async with ScriptedPolicyServer() as server:
        client = await connect(server, wide=wide)
        body = json.loads(client.publish("m", 1, "20261129-1/a2/step-000012").body)
        assert body["path"] == name
        await client.sample(turn(await client.base_policy(), seed=2**40 + 5))
        assert server.requests("asample")[0].body["sampling_params"]["seed"] == seed


def test_what_is_known_of_a_server():
    assert Formats.of("auto") == Formats("json", known=False)
    assert Formats.of("auto", "protobuf") == Formats("protobuf", known=True)
    assert Formats.of("json", "protobuf") == Formats("json", known=True)
