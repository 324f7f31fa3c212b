"""Whatever a server answers, the client ends in a value or in one typed line. Never a traceback
of its own, never a hang, nothing left behind."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.ports import ContextOverflow, PolicyFailure, Sample
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import Capabilities, ForwardBackwardResult, LossSpec
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer

from .calls import ADAM, SPEC, datum, turn

KEYS = st.sampled_from([
    "request_id", "sequences", "tokens", "logprobs", "stop_reason", "type", "error", "category",
    "detail", "metrics", "loss_fn_outputs", "data", "loss:sum", "path", "model_id",
    "session_id", "sampling_session_id", "weights", "prompt_logprobs", "message", "msg", "loc",
])  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["stop", "length", "try_again", "user", "1", "\x1b[2J", "x" * 5000]),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=12,
)
SEQUENCE = st.fixed_dictionaries(
    {"tokens": st.lists(LEAVES, max_size=3), "stop_reason": LEAVES},
    optional={"logprobs": st.one_of(JSON, st.lists(st.floats(), max_size=3))},
)
SHAPED = st.one_of(
    JSON,
    st.fixed_dictionaries({"sequences": st.lists(st.one_of(SEQUENCE, JSON), max_size=2)}),
    st.fixed_dictionaries({
        "loss_fn_outputs": st.lists(
            st.one_of(JSON, st.fixed_dictionaries({"logprobs": JSON})), max_size=2
        ),
        "metrics": st.one_of(JSON, st.dictionaries(KEYS, LEAVES)),
    }),
    st.fixed_dictionaries({"error": JSON, "category": JSON}),
)  # fmt: skip
BODIES = st.one_of(
    SHAPED.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.sampled_from([b"", b"[" * 50_000, b'{"a":' * 5000, b"<html>", b"null", b"NaN"]),
)
STATUSES = st.sampled_from([200, 200, 200, 200, 201, 204, 301, 400, 401, 404, 409, 422, 500, 503])

fuzz = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def client_of(server, **options):
    return TinkerService(
        Address.of(server.url, "tml-secret"),
        "scripted",
        Capabilities("immutable", False, True, True, True),
        sample_timeout=0.1,
        training_timeout=5.0,
        **options,
    )


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("mtrl_cli.servers.tinker.sampling._ATTEMPTS", 2)


async def ends_well(work, value, errors):
    """In a value of this type, or in one line."""
    try:
        result = await work
    except errors as error:
        text = str(error)
    else:
        assert isinstance(result, value)
        return
    assert text.isprintable()
    assert 0 < len(text) < 700
    assert "tml-secret" not in text


@fuzz
@given(endpoint=st.sampled_from(["asample", "retrieve_future"]), status=STATUSES, body=BODIES)
def test_sampling(quick, endpoint, status, body):
    async def run():
        async with ScriptedPolicyServer() as server:
            client = client_of(server)
            await client.connect()
            server.faults.add(endpoint, faults.status(status, body), times=-1)
            policy = await client.base_policy()
            known = (PolicyFailure, ContextOverflow, ServerError)
            await ends_well(client.sample(turn(policy)), Sample, known)
            await ends_well(client.logprobs(policy, [1, 2]), np.ndarray, known)
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 20))


@fuzz
@given(
    kind=st.sampled_from(["create_model", "forward_backward", "optim_step", "retrieve_future"]),
    status=STATUSES,
    body=BODIES,
)
def test_training(quick, kind, status, body):
    async def run():
        async with ScriptedPolicyServer() as server:
            client = client_of(server)
            await client.connect()
            ids = []
            model = await client.execute(client.create_model(SPEC), ids.append)
            client._training._seconds = 0.1  # from here on, promises that never end are many
            server.faults.add(kind, faults.status(status, body), times=-1)
            loss = LossSpec("ppo", {})
            for call, result in (
                (client.create_model(SPEC), str),
                (client.forward_backward(model, 1, [datum()], loss), ForwardBackwardResult),
                (client.optim_step(model, 2, ADAM), dict),
            ):
                await ends_well(client.execute(call, ids.append), result, ServerError)
            assert all(isinstance(name, str) and name.isprintable() for name in ids)
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 20))


@fuzz
@given(
    endpoint=st.sampled_from(["get_server_capabilities", "create_session"]),
    status=STATUSES,
    body=BODIES,
)
def test_connecting(quick, endpoint, status, body):
    async def run():
        async with ScriptedPolicyServer() as server:
            client = client_of(server)
            server.faults.add(endpoint, faults.status(status, body), times=-1)
            await ends_well(client.connect(), type(None), MtrlError)
            await client.close()

    asyncio.run(asyncio.wait_for(run(), 20))
