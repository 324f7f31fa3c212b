"""Outcomes of training calls: nothing is repeated, and the last line of a traceback decides."""

import asyncio
import json
from dataclasses import replace

import pytest

from mtrl_cli.servers.errors import AuthError, Refused, ServerError, Unknown
from mtrl_cli.servers.twinkle.errors import AdapterLost, last_line
from mtrl_cli.testing import faults
from mtrl_cli.testing.twinkle_script import traceback_of
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .twinkle_kit import ADAM, SESSION, Trained, connected

MODEL = "model/scripted/twinkle/"
UNLOAD = "model/scripted/tinker/unload_model"
CALLS = {
    "train": "forward_backward",
    "step": "clip_grad_and_step",
    "publish": "save",
    "save": "save",
    "load": "resume_from_checkpoint",
}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 0.1)


async def make(trained: Trained, kind: str, state: str):
    return await (trained.load(state) if kind == "load" else getattr(trained, kind)())


UNCLEAR = {
    "reply lost": faults.drop_reply(),
    "request lost": faults.drop_request(),
    "reply cut": faults.cut(2),
    "no JSON": faults.body("<html>"),
    "server error": faults.fail("RuntimeError: CUDA error: out of memory", applied=True),
    "gateway error": faults.status(502, "bad gateway"),
    "timed out inside": faults.fail(
        "RuntimeError: Execution timeout exceeded: 120.0s, actual 121s"
    ),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("what", UNCLEAR)
async def test_an_unclear_outcome_is_unknown_and_the_call_is_sent_once(kind, what):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        state = await trained.save()
        server.faults.add(MODEL + CALLS[kind], UNCLEAR[what])
        before = len(server.requests(MODEL + CALLS[kind]))
        with pytest.raises(Unknown, match="may have been executed"):
            await make(trained, kind, state)
        assert len(server.requests(MODEL + CALLS[kind])) == before + 1


async def test_a_reply_that_does_not_come_in_time_is_unknown():
    async with (
        ScriptedTwinkleServer() as server,
        connected(server, training_timeout=0.3) as client,
    ):
        trained = await Trained.on(client)
        server.faults.add(MODEL + "clip_grad_and_step", faults.hang())
        with pytest.raises(Unknown, match="no reply in time"):
            await trained.step()
        assert server.models[trained.model].steps == 1


REFUSALS = [
    "RuntimeError: Rate limit exceeded: RPS limit exceeded: 3/3.0 requests/s",
    "RuntimeError: Rate limit exceeded: TPS limit exceeded: 60/50.0 tokens/s",
    "RuntimeError: Queue timeout exceeded: waited 8.10s",
]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("error", REFUSALS)
async def test_what_was_turned_away_before_the_queue_is_sent_again(kind, error):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        state = await trained.save()
        before = server.applied()
        server.faults.add(MODEL + CALLS[kind], faults.fail(error), times=2)
        await make(trained, kind, state)
        assert server.applied() == before + 1
        assert server.faults.met == 2


async def test_what_is_turned_away_for_good_is_refused_with_the_last_line():
    error = "RuntimeError: Input tokens (16001) exceed maximum allowed (16000)"
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        server.faults.add(MODEL + "forward_backward", faults.fail(error))
        with pytest.raises(Refused) as refused:
            await trained.train()
        text = str(refused.value)
        assert text.endswith(error)
        assert "\n" not in text
        assert len(text) < 200
        assert not refused.value.transient
        assert server.applied("forward_backward") == 0


async def test_rate_limits_that_do_not_end_are_refused_as_transient():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        server.faults.add(MODEL + "clip_grad_and_step", faults.fail(REFUSALS[0]), times=-1)
        with pytest.raises(Refused, match="Rate limit") as refused:
            await trained.step()
        assert refused.value.transient
        assert server.models[trained.model].steps == 0


async def test_one_that_was_turned_away_is_not_sent_again_for_a_run_that_ends():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        server.faults.add(MODEL + "clip_grad_and_step", faults.fail(REFUSALS[0]), times=1)
        client.stop_waiting()
        with pytest.raises(Refused, match="Rate limit"):
            await trained.step()
        assert server.models[trained.model].steps == 0
        server.faults.add(UNLOAD, faults.fail(REFUSALS[0]), times=1)
        await trained.unload()
        assert server.faults.met == 2
        assert not server.models


async def test_a_server_that_is_gone_is_refused():
    server = ScriptedTwinkleServer()
    await server.start()
    async with connected(server) as client:
        trained = await Trained.on(client)
        await server.stop()
        with pytest.raises(Refused, match="connection refused"):
            await trained.step()


# --- the adapter ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CALLS)
async def test_an_adapter_that_expired_is_its_own_error(kind):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        state = await trained.save()
        server.expire(trained.model)
        with pytest.raises(AdapterLost) as lost:
            await make(trained, kind, state)
        assert f"no longer has the adapter {SESSION}-mtrl1" in str(lost.value)
        assert "weights and optimizer state are lost" in str(lost.value)
        assert not lost.value.transient
        # It is not added again by itself: that would be another one, with nothing learnt.
        assert len(server.requests(MODEL + "add_adapter_to_model")) == 1
        await trained.unload()  # the server does not mind


@pytest.mark.parametrize(
    "fault",
    [faults.drop_reply(), faults.fail(REFUSALS[0]), faults.fail("RuntimeError: no free LoRA slot")],
)
async def test_an_adapter_is_never_added_twice(fault):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        server.faults.add(MODEL + "add_adapter_to_model", fault)
        with pytest.raises(ServerError) as error:
            await Trained.on(client)
        assert len(server.requests(MODEL + "add_adapter_to_model")) == 1
        if isinstance(error.value, Unknown):
            assert f"it may hold the slot of {SESSION}-mtrl1" in str(error.value)
        again = await Trained.on(client)
        assert again.model == f"{SESSION}-mtrl2"


@pytest.mark.parametrize("step", ["set_template", "set_processor", "set_loss", "set_optimizer"])
async def test_an_adapter_that_cannot_be_set_up_is_given_back(step):
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        server.faults.add(MODEL + step, faults.fail("ValueError: Unknown plugin id: X"))
        with pytest.raises(Refused, match="Unknown plugin id: X; the adapter was given back"):
            await Trained.on(client)
        assert server.slots == set()


async def test_an_adapter_that_can_neither_be_set_up_nor_given_back_is_unknown():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        server.faults.add(MODEL + "set_loss", faults.drop_reply())
        server.faults.add(UNLOAD, faults.status(502), times=-1)
        with pytest.raises(Unknown, match=f"{SESSION}-mtrl1 could not be given back"):
            await Trained.on(client)
        assert server.slots == {f"{SESSION}-mtrl1"}


async def test_a_template_that_the_server_does_not_have():
    async with ScriptedTwinkleServer() as server, connected(server, template="Tempalte") as client:
        with pytest.raises(Refused, match="Unknown plugin id: Tempalte"):
            await Trained.on(client)
        assert server.slots == set()


async def test_an_unload_whose_end_is_not_told_is_unknown(monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.twinkle.training._UNLOAD_SECONDS", 0.3)
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        server.faults.add("retrieve_future", faults.body({"type": "try_again"}), times=-1)
        with pytest.raises(Unknown, match="unload_model has not ended"):
            await trained.unload()
        server.faults.clear()
        await trained.unload()
        assert server.slots == set()


async def test_a_lost_figure_does_not_make_a_step_unknown():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        server.faults.add(MODEL + "calculate_metric", faults.drop_reply())
        assert await trained.step() == {}
        assert server.models[trained.model].steps == 1


# --- snapshots --------------------------------------------------------------------------------


async def test_two_snapshots_never_share_a_name(monkeypatch):
    """The server's clock has stood still for a moment: the same weights are saved again."""
    monkeypatch.setattr("mtrl_cli.servers.twinkle.training._SECOND", 0.05)
    ticks = iter([100.2, 100.9, 101.0])
    async with (
        ScriptedTwinkleServer(clock=lambda: next(ticks)) as server,
        connected(server) as client,
    ):
        trained = await Trained.on(client)
        first = await trained.publish()
        await trained.step()
        second = await trained.publish()
        assert first != second
        assert server.applied("save") == 3
        assert server.snapshots[second] == 1


async def test_a_second_passes_between_two_snapshots():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        await trained.publish()
        await trained.publish()
        await trained.save()  # a state is named by us, and need not wait
        first, second, state = (request.at for request in server.requests(MODEL + "save"))
        assert second - first > 1.0
        assert state - second < 0.9


async def test_a_name_that_never_changes_is_not_taken_for_new_weights(monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.twinkle.training._SECOND", 0.01)
    async with ScriptedTwinkleServer(clock=lambda: 100.0) as server, connected(server) as client:
        trained = await Trained.on(client)
        await trained.publish()
        with pytest.raises(ServerError, match="could not be told from samples of the old one"):
            await trained.publish()


# --- who may train ----------------------------------------------------------------------------


async def test_a_state_is_found_under_its_own_token_only():
    async with ScriptedTwinkleServer() as server:
        async with connected(server, key="mine") as client:
            state = await (await Trained.on(client)).save()
        async with connected(server, key="other") as client:
            trained = await Trained.on(client)
            with pytest.raises(Refused, match="not found or access denied"):
                await trained.load(state)
        async with connected(server, key="mine") as client:
            await (await Trained.on(client)).load(state)


async def test_a_key_that_is_not_taken():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        trained = await Trained.on(client)
        server.faults.add(MODEL + "clip_grad_and_step", faults.status(403, {"detail": "no"}))
        with pytest.raises(AuthError):
            await trained.step()
        server.faults.add("twinkle/create_session", faults.status(403, {"detail": "Invalid token"}))
        with pytest.raises(AuthError, match="correct TWINKLE_API_KEY"):
            async with connected(server):
                pass


async def test_two_tenants_do_not_see_each_other():
    async with (
        ScriptedTwinkleServer() as server,
        connected(server, key="a") as first,
        connected(server, key="b") as second,
    ):
        one, two = await asyncio.gather(Trained.on(first), Trained.on(second))
        assert one.model != two.model
        await asyncio.gather(one.train(), two.train())
        await two.step()
        await one.unload()
        assert server.slots == {two.model}
        await two.step(replace(ADAM, learning_rate=0.5))
        assert server.models[two.model].steps == 2


def test_the_last_line_is_the_error_whatever_stands_around_it():
    error = "ValueError: max_tokens must be >= 1, got None"
    body = {"detail": traceback_of(error) + "[twinkle] driver caller: x.py:12\n\n"}
    assert last_line(json.dumps(body).encode()) == error
    assert len(body["detail"]) > 20_000
    big = {"detail": "Traceback (most recent call last):\n" + "x" * 500_000 + f"\n{error}\n"}
    assert last_line(json.dumps(big).encode()) == error
    cut_off = json.dumps(body).encode()[:300]
    assert last_line(cut_off)  # not JSON any more, and still one line
    assert last_line(b"") == ""
    assert last_line(json.dumps({"detail": "a\x1b[31mred"}).encode()) == "a\\x1b[31mred"
