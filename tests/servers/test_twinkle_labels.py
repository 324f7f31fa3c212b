"""From the requests as they are sent: labels, old logprobs and advantages fall on exactly the
sampled tokens.

The mock server does not look at labels, so its part is played here by two models of the real one,
written from what was observed of it: how it continues a feature turn by turn (unroll, append,
roll again), and how its losses read a batch.
"""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrl_cli.rollout.ports import RefusedTrajectory, Sample
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.servers.interface import Datum, LossSpec
from mtrl_cli.servers.twinkle.codec import forward_backward_body, sample_body, samples_of
from mtrl_cli.servers.twinkle.losses import LOSSES
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .twinkle_kit import connected, turn

IDS = st.lists(st.integers(0, 151_000), min_size=1, max_size=6)
VALUES = st.floats(-20.0, 0.0, width=32)
WEIGHTS = st.floats(-3.0, 3.0, width=32).filter(lambda value: abs(value) > 1e-3)


@dataclass
class Played:
    """A trajectory and its advantages, one for each sampled token."""

    tokens: TokenSequence
    advantages: list[float]

    @property
    def sampled(self) -> list[int]:
        """The places of the sampled tokens."""
        spans = [range(span.start, span.end) for span, _ in self.tokens.sampled_spans()]
        return [place for span in spans for place in span]

    @property
    def datum(self) -> Datum:
        ids = np.array(self.tokens.ids, np.int32)
        logprobs, advantages = (np.zeros(len(ids) - 1, np.float32) for _ in range(2))
        before = np.array(self.sampled) - 1
        logprobs[before] = self.tokens.sampled_logprobs
        advantages[before] = self.advantages
        return Datum(ids[:-1], ids[1:], logprobs, advantages)


@st.composite
def trajectories(draw: st.DrawFn, uniform: bool | None = None) -> Played:
    tokens = TokenSequence(draw(IDS))
    for number in range(draw(st.integers(1, 4))):
        if number:
            tokens.append_bridge(draw(IDS))
        ids = draw(IDS)
        logprobs = draw(st.lists(VALUES, min_size=len(ids), max_size=len(ids)))
        tokens.append_sampled(Sample(ids, logprobs, "stop"), "p")
    count = tokens.sampled_count
    if draw(st.booleans()) if uniform is None else uniform:
        return Played(tokens, [draw(WEIGHTS)] * count)
    return Played(tokens, draw(st.lists(WEIGHTS, min_size=count, max_size=count)))


BATCHES = st.lists(trajectories(), min_size=1, max_size=4)


def sent(batch: list[Played], loss: str = "ppo", backend: str = "transformers") -> dict:
    data = [played.datum for played in batch]
    return json.loads(forward_backward_body("a", data, LossSpec(loss, {}), backend))


def spread(values: float | list[float], labels: list[int], width: int) -> list[float]:
    """How the server's losses read a value or a list of them: by length."""
    where = [i for i, label in enumerate(labels) if label != -100]
    row = [0.0] * width
    if not isinstance(values, list) or len(values) == 1:
        only = values[0] if isinstance(values, list) else values
        for i in where:
            row[i] = only
    elif len(values) == len(where):
        for i, value in zip(where, values, strict=True):
            row[i] = value
    elif len(values) >= width:
        for i in where:
            row[i] = values[i]
    else:
        raise AssertionError("data/mask length mismatch")
    return row


@given(BATCHES)
def test_labels_old_logps_and_advantages_fall_on_the_sampled_tokens_only(batch):
    body = sent(batch)
    width = max(len(feature["input_ids"]) for feature in body["inputs"])
    for played, feature, old, advantage in zip(
        batch, body["inputs"], body["old_logps"], body["advantages"], strict=True
    ):
        ids, labels = feature["input_ids"], feature["labels"]
        assert ids == list(played.tokens.ids)
        assert len(labels) == len(feature["attention_mask"]) == feature["length"] == len(ids)
        assert feature["position_ids"] == [*range(len(ids))]
        # The position before each sampled token, and no other, is trained on its id.
        expected = [-100] * len(ids)
        for place in played.sampled:
            expected[place - 1] = ids[place]
        assert labels == expected
        # No length is read in another way than it is meant.
        count = played.tokens.sampled_count
        assert len(old) == count
        assert count < width
        assert not isinstance(advantage, list) or len(advantage) == count

        factor = len(batch) * count
        olds, weights = spread(old, labels, width), spread(advantage, labels, width)
        wanted = zip(played.sampled, played.tokens.sampled_logprobs, played.advantages, strict=True)
        for place, logprob, weight in wanted:
            assert np.float32(olds[place - 1]) == np.float32(logprob)
            assert weights[place - 1] == pytest.approx(np.float32(weight) * factor)
        untrained = set(range(width)) - {place - 1 for place in played.sampled}
        assert all(olds[i] == weights[i] == 0 for i in untrained)


@given(trajectories())
def test_the_labels_are_those_the_server_builds_turn_by_turn(played):
    """The official client's way: `new_input_feature` after each turn, a bridge in between."""
    spans = list(played.tokens.spans)
    ids = list(played.tokens.ids)
    feature = {"input_ids": ids[: spans[0].end], "labels": [-100] * spans[0].end}
    for span in spans[1:]:
        new = ids[span.start : span.end]
        labels = feature["labels"][-1:] + feature["labels"][:-1]  # unroll
        labels += new if span.kind == "sampled" else [-100] * len(new)
        feature = {
            "input_ids": feature["input_ids"] + new,
            "labels": labels[1:] + labels[:1],  # and roll again
        }
    [mine] = sent([played])["inputs"]
    assert (mine["input_ids"], mine["labels"]) == (feature["input_ids"], feature["labels"])


def per_token(loss: str, ratio: float, advantage: float, logp: float) -> float:
    """-1 times mtrl's objective of one token, with the default parameters (see the docstring of
    `twinkle_losses`); GSPO's ratio is that of the sequence."""
    clipped = min(max(ratio, 0.8), 1.2)
    if loss in ("ppo", "gspo"):
        return -min(ratio * advantage, clipped * advantage)
    if loss == "cispo":
        return -min(ratio, 1.2) * advantage * logp
    if loss == "sapo":
        return -4 / (1 + math.exp(-(ratio - 1))) * advantage
    return -ratio * advantage


def ratios(loss: str, new: list[float], old: list[float]) -> list[float]:
    gaps = [min(max(a - b, -20.0), 20.0) for a, b in zip(new, old, strict=True)]
    if loss == "gspo":
        gaps = [sum(gaps) / len(gaps)] * len(gaps)
    return [math.exp(gap) for gap in gaps]


@settings(deadline=None)
@given(BATCHES, st.sampled_from(sorted(LOSSES)), st.randoms(use_true_random=False))
def test_the_servers_mean_of_what_is_sent_is_the_sum_of_what_was_meant(batch, loss, random):
    body = sent(batch, loss)
    means, total, tokens = [], 0.0, 0
    spread_sum = 0.0
    for played, feature, old, advantage in zip(
        batch, body["inputs"], body["old_logps"], body["advantages"], strict=True
    ):
        new = [logprob + random.uniform(-0.5, 0.5) for logprob in played.tokens.sampled_logprobs]
        meant = ratios(loss, new, list(played.tokens.sampled_logprobs))
        total += sum(
            per_token(loss, ratio, weight, logp)
            for ratio, weight, logp in zip(meant, played.advantages, new, strict=True)
        )
        labels = feature["labels"]
        where = [i for i, label in enumerate(labels) if label != -100]
        weights = spread(advantage, labels, len(labels) + 1)
        read = [spread(old, labels, len(labels) + 1)[i] for i in where]
        losses = [
            per_token(loss, ratio, weights[i], logp)
            for i, ratio, logp in zip(where, ratios(loss, new, read), new, strict=True)
        ]
        means.append(sum(losses) / len(losses))
        spread_sum += sum(losses)
        tokens += len(losses)
    server = spread_sum / tokens if loss == "cispo" else sum(means) / len(means)
    assert server == pytest.approx(total, rel=1e-4, abs=1e-4)


@given(trajectories(uniform=False))
def test_a_sampling_request_labels_nothing(played):
    request = turn("twinkle://s-a/sampler_weights/1", tokens=played.tokens.ids)
    [feature] = json.loads(sample_body([request], request.policy))["inputs"]
    assert feature == {
        "input_ids": list(played.tokens.ids),
        "labels": [-100] * len(played.tokens),
    }


@pytest.mark.parametrize("shape", ["real", "mock"])
async def test_rolled_and_unrolled_features_are_both_the_context_that_was_sent(shape):
    async with (
        ScriptedTwinkleServer(shape=shape, sampler=lambda t, i: ([7, 2], [-0.5, -1.0])) as server,
        connected(server) as client,
    ):
        tokens = TokenSequence([1, 2, 3])
        base = await client.base_policy()
        tokens.append_sampled(await client.sample(turn(base, tokens=tokens.ids)), base)
        tokens.append_bridge([4, 5])
        tokens.append_sampled(await client.sample(turn(base, tokens=tokens.ids)), base)
    assert list(tokens.ids) == [1, 2, 3, 7, 2, 4, 5, 7, 2]


@pytest.mark.parametrize(
    ("echo", "says"),
    [
        (lambda ids: [9, *ids[1:]], "token 0 is 1, the server echoes 9"),
        (lambda ids: ids[1:], "sent and sampled 5 tokens, the server echoes 4"),
        (lambda ids: [*ids, 2], "sent and sampled 5 tokens, the server echoes 6"),
    ],
)
async def test_another_context_than_was_sent_refuses_the_trajectory(echo, says):
    async with (
        ScriptedTwinkleServer(echo=echo, sampler=lambda t, i: ([7, 2], [-0.5, -1.0])) as server,
        connected(server) as client,
    ):
        tokens = TokenSequence([1, 2, 3])
        base = await client.base_policy()
        sample = await client.sample(turn(base, tokens=tokens.ids))
        with pytest.raises(RefusedTrajectory, match=says) as refused:
            tokens.append_sampled(sample, base)
    assert refused.value.reason == "divergent"
    assert list(tokens.ids) == [1, 2, 3]


@given(trajectories())
def test_an_answer_to_another_turn_of_the_call_is_divergent(played):
    """Samples come in the order of the inputs; one that is out of place shows in its echo."""
    ids = list(played.tokens.ids)
    neighbour = [*ids, 0]
    sequence = {"stop_reason": "stop", "tokens": [5], "logprobs": [[[5, -1.0]]]}
    echoed = {**sequence, "new_input_feature": {"input_ids": [*neighbour, 5]}}
    [sample] = samples_of({"samples": [{"sequences": [echoed]}]}, 1)
    with pytest.raises(RefusedTrajectory, match="DivergentEncoding"):
        TokenSequence(ids).append_sampled(sample, "p")


def test_a_datum_without_an_advantage_is_not_sent():
    played = Played(TokenSequence([1]), [])
    played.tokens.append_sampled(Sample([2], [-0.5], "stop"), "p")
    played.advantages = [0.0]
    with pytest.raises(ValueError, match="no token with an advantage"):
        sent([played])
