"""Turns of a moment share a call; what cannot share one does not."""

import asyncio

import pytest

from mtrl_cli.rollout.ports import ContextOverflow, PolicyFailure, SamplingParams
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.testing import faults
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .twinkle_kit import Trained, connected, turn

SAMPLE = "sampler/scripted/twinkle/sample"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 0.1)


def echo_last(tokens, index):
    """A completion that tells whose it is."""
    return [tokens[-1], 2], [-1.0, -0.5]


def sizes(server):
    return [len(request.body["inputs"]) for request in server.requests(SAMPLE)]


async def sample_all(client, requests):
    return await asyncio.gather(*map(client.sample, requests), return_exceptions=True)


async def test_a_ticks_turns_go_in_one_call_and_come_back_to_their_own():
    async with ScriptedTwinkleServer(sampler=echo_last) as server, connected(server) as client:
        base = await client.base_policy()
        requests = [turn(base, tokens=[1, 10 + i], seed=i) for i in range(64)]
        samples = await sample_all(client, requests)
        assert [sample.tokens[0] for sample in samples] == [10 + i for i in range(64)]
        assert sizes(server) == [64]
        assert "seed" not in server.requests(SAMPLE)[0].body["sampling_params"]


async def test_other_policies_lengths_stops_and_temperatures_are_other_calls():
    async with ScriptedTwinkleServer(sampler=echo_last) as server, connected(server) as client:
        trained = await Trained.on(client)
        base, uri = await client.base_policy(), await trained.publish()
        different = [
            turn(base), turn(uri), turn(base, max_tokens=7), turn(base, stop_ids=(2, 3)),
            turn(base, sampling=SamplingParams(0.5)),
        ]  # fmt: skip
        samples = await sample_all(client, [*different, *different])
        assert all(sample.tokens == [3, 2] for sample in samples)
        assert sizes(server) == [2] * 5
        uris = [request.body.get("adapter_uri") for request in server.requests(SAMPLE)]
        assert uris == [None, uri, None, None, None]


async def test_one_call_at_a_time_and_what_arrives_meanwhile_waits_for_the_next():
    async with (
        ScriptedTwinkleServer(sampler=echo_last, sample_seconds=0.3) as server,
        connected(server) as client,
    ):
        base = await client.base_policy()
        first = asyncio.gather(*(client.sample(turn(base)) for _ in range(3)))
        await asyncio.sleep(0.1)
        late = []
        for _ in range(4):
            late.append(asyncio.ensure_future(client.sample(turn(base))))
            await asyncio.sleep(0.02)
        await asyncio.gather(first, *late)
        assert sizes(server) == [3, 4]
        assert server.sampled_at_once == 1


async def test_a_call_holds_no_more_prompt_tokens_than_the_server_takes():
    async with (
        ScriptedTwinkleServer(sampler=echo_last, max_input_tokens=100) as server,
        connected(server, tokens_per_call=100) as client,
    ):
        base = await client.base_policy()
        samples = await sample_all(client, [turn(base, tokens=[5] * 30) for _ in range(7)])
        assert all(sample.tokens == [5, 2] for sample in samples)
        assert sizes(server) == [3, 3, 1]
        with pytest.raises(PolicyFailure, match=r"Input tokens \(101\) exceed") as failed:
            await client.sample(turn(base, tokens=[5] * 101))
        assert failed.value.permanent


async def test_a_turn_that_nobody_waits_for_any_more_is_not_sent():
    async with (
        ScriptedTwinkleServer(sampler=echo_last, sample_seconds=0.2) as server,
        connected(server) as client,
    ):
        base = await client.base_policy()
        first = asyncio.ensure_future(client.sample(turn(base)))
        await asyncio.sleep(0.1)
        gone = asyncio.ensure_future(client.sample(turn(base, tokens=[1, 9])))
        kept = asyncio.ensure_future(client.sample(turn(base, tokens=[1, 8])))
        await asyncio.sleep(0.02)
        gone.cancel()
        assert (await first).tokens == [3, 2]
        assert (await kept).tokens == [8, 2]
        assert [r.body["inputs"][0]["input_ids"] for r in server.requests(SAMPLE)] == [
            [1, 2, 3], [1, 8],
        ]  # fmt: skip
        # One that is cancelled in flight takes nobody with it either.
        both = [asyncio.ensure_future(client.sample(turn(base))) for _ in range(2)]
        await asyncio.sleep(0.1)
        both[0].cancel()
        assert (await both[1]).tokens == [3, 2]


@pytest.mark.parametrize(
    "fault",
    [
        faults.drop_reply(),
        faults.cut(),
        faults.status(503, "busy"),
        faults.fail("RuntimeError: Rate limit exceeded: TPS limit exceeded: 1/1 tokens/s"),
        faults.fail("RuntimeError: CUDA error"),
        faults.body({"samples": []}),
    ],
)
async def test_a_call_that_failed_is_made_again(fault):
    async with ScriptedTwinkleServer(sampler=echo_last) as server, connected(server) as client:
        base = await client.base_policy()
        server.faults.add(SAMPLE, fault)
        samples = await sample_all(client, [turn(base) for _ in range(3)])
        assert all(sample.tokens == [3, 2] for sample in samples)
        assert sizes(server) == [3, 3]


@pytest.mark.parametrize("error", ["ValueError: token id 99 is out of vocabulary", "OSError: 99"])
async def test_one_turn_that_cannot_be_sampled_does_not_take_its_neighbours_with_it(error):
    async with ScriptedTwinkleServer(sampler=echo_last) as server, connected(server) as client:
        base = await client.base_policy()
        bad = lambda body: any(99 in item["input_ids"] for item in body["inputs"])  # noqa: E731
        server.faults.add(SAMPLE, faults.fail(error), times=-1, match=bad)
        requests = [turn(base, tokens=[1, 99 if i == 5 else i]) for i in range(8)]
        samples = await sample_all(client, requests)
        failed = [i for i, sample in enumerate(samples) if isinstance(sample, BaseException)]
        assert failed == [5]
        assert isinstance(samples[5], PolicyFailure)
        assert samples[5].permanent == error.startswith("ValueError")


async def test_a_full_context_is_a_stop_and_not_a_failure():
    error = (
        "ValueError: The decoder prompt (length 5000) is longer than the maximum model length "
        "of 4096."
    )
    async with ScriptedTwinkleServer(sampler=echo_last) as server, connected(server) as client:
        base = await client.base_policy()
        server.faults.add(SAMPLE, faults.fail(error), times=-1)
        with pytest.raises(ContextOverflow):
            await client.sample(turn(base))


async def test_a_policy_that_was_replaced_is_not_sampled_with_other_weights():
    async with ScriptedTwinkleServer(sampler=echo_last) as server, connected(server) as client:
        trained = await Trained.on(client)
        old = await trained.publish()
        await trained.step()
        new = await trained.publish()
        with pytest.raises(PolicyFailure, match="keeps the newest snapshot") as failed:
            await client.sample(turn(old))
        assert failed.value.permanent
        assert (await client.sample(turn(new))).tokens == [3, 2]
        # A snapshot of somebody else's adapter is asked for as it is.
        other = "twinkle://session_x-other/sampler_weights/20260101_000000"
        await client.sample(turn(other))
        assert server.requests(SAMPLE)[-1].body["adapter_uri"] == other
        assert server.drifts == []


async def test_closing_ends_what_still_waits():
    async with ScriptedTwinkleServer(sampler=echo_last) as server:
        async with connected(server) as client:
            server.faults.add(SAMPLE, faults.hang())
            base = await client.base_policy()
            waiting = [asyncio.ensure_future(client.sample(turn(base))) for _ in range(2)]
            await asyncio.sleep(0.1)
            waiting.append(asyncio.ensure_future(client.sample(turn(base))))
            await asyncio.sleep(0.05)
        done, pending = await asyncio.wait(waiting, timeout=2)
        assert not pending
        assert all(task.cancelled() for task in done)


async def test_no_logprobs_are_promised_that_the_server_does_not_give():
    async with ScriptedTwinkleServer() as server, connected(server) as client:
        with pytest.raises(ServerError, match="no logprobs of given tokens"):
            await client.logprobs(await client.base_policy(), [1, 2])
        assert client.capabilities.policy_logprobs is False
        assert server.samples == 0
