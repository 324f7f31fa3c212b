"""Token truth: what is kept is what the server returned, and what breaks a rule is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.rollout.ports import RefusedTrajectory, Sample
from mtrl_cli.rollout.tokens import LOGPROB_ALLOWANCE, SpanKind, TokenSequence

ids = st.lists(st.integers(0, 2**31 - 1), max_size=12)
logprob = st.floats(-50, 0, width=32)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    tokens = draw(ids)
    values = draw(st.lists(logprob, min_size=len(tokens), max_size=len(tokens)))
    return Sample(tokens, values, "stop")


@given(prompt=ids, turns=st.lists(st.tuples(samples(), ids), max_size=5))
def test_a_sequence_is_the_concatenation_of_what_was_appended(
    prompt: list[int], turns: list[tuple[Sample, list[int]]]
) -> None:
    sequence = TokenSequence(prompt)
    expected, logprobs, kinds = list(prompt), [], [SpanKind.PROMPT]
    for sample, bridge in turns:
        sequence.append_sampled(sample, "p")
        sequence.append_bridge(bridge)
        expected += [*sample.tokens, *bridge]
        logprobs += sample.logprobs
        kinds += [SpanKind.SAMPLED, SpanKind.BRIDGE]

    assert sequence.ids.tolist() == expected
    assert sequence.sampled_logprobs.tolist() == logprobs
    assert [span.kind for span in sequence.spans] == kinds
    # The spans tile the sequence without a hole or an overlap.
    edges = [edge for span in sequence.spans for edge in (span.start, span.end)]
    assert edges[0] == 0
    assert edges[-1] == len(expected)
    assert edges[1:-1:2] == edges[2::2]
    # Each sampled token has its own logprob, found where the span says.
    for span, offset in sequence.sampled_spans():
        size = span.end - span.start
        assert (
            sequence.sampled_logprobs.tolist()[offset : offset + size]
            == (logprobs[offset : offset + size])
        )
    assert sequence.sampled_count == len(logprobs)


@given(prompt=ids, turn=samples(), extra=st.integers(-3, 3).filter(bool))
def test_a_wrong_number_of_logprobs_is_refused_and_changes_nothing(
    prompt: list[int], turn: Sample, extra: int
) -> None:
    count = max(0, len(turn.tokens) + extra)
    wrong = Sample(turn.tokens, [-1.0] * count, "stop")
    if count == len(turn.tokens):
        return
    sequence = TokenSequence(prompt)
    with pytest.raises(RefusedTrajectory) as refused:
        sequence.append_sampled(wrong, "p")
    assert refused.value.reason == "bad_logprobs"
    assert sequence.ids.tolist() == prompt
    assert sequence.sampled_count == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.5, 2 * LOGPROB_ALLOWANCE])
def test_a_logprob_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(RefusedTrajectory, match="sampled token 1"):
        TokenSequence([1]).append_sampled(Sample([5, 6], [-0.1, value], "stop"), "p")


def test_a_certain_token_may_have_a_logprob_just_above_zero() -> None:
    sequence = TokenSequence([1])
    sequence.append_sampled(Sample([5], [LOGPROB_ALLOWANCE / 2], "stop"), "p")
    assert sequence.sampled_count == 1


@given(prompt=ids, turn=samples(), data=st.data())
def test_an_echo_that_differs_anywhere_is_divergent(
    prompt: list[int], turn: Sample, data: st.DataObject
) -> None:
    context = [*prompt, *turn.tokens]
    right = Sample(turn.tokens, turn.logprobs, "stop", echo=context)
    TokenSequence(prompt).append_sampled(right, "p")

    if context and data.draw(st.booleans()):
        position = data.draw(st.integers(0, len(context) - 1))
        echo = [*context]
        echo[position] += 1
    else:
        echo = [*context, 3]
    wrong = Sample(turn.tokens, turn.logprobs, "stop", echo=echo)
    with pytest.raises(RefusedTrajectory, match="DivergentEncoding") as refused:
        TokenSequence(prompt).append_sampled(wrong, "p")
    assert refused.value.reason == "divergent"


def test_other_weights_than_the_policy_asked_for_are_refused() -> None:
    sample = Sample([5], [-0.1], "stop", policy="tinker://other")
    with pytest.raises(RefusedTrajectory, match="tinker://other") as refused:
        TokenSequence([1]).append_sampled(sample, "tinker://asked")
    assert refused.value.reason == "policy_mismatch"


@given(turn=samples(), most=st.integers(0, 12), vocabulary=st.integers(1, 2**31))
def test_more_tokens_than_asked_for_and_unknown_ids_are_refused(
    turn: Sample, most: int, vocabulary: int
) -> None:
    sequence = TokenSequence([1])
    flaw = None
    if len(turn.tokens) > most:
        flaw = "too_many_tokens"
    elif any(token >= vocabulary for token in turn.tokens):
        flaw = "unknown_token"
    if flaw is None:
        sequence.append_sampled(turn, "p", most, vocabulary)
        assert sequence.ids.tolist() == [1, *turn.tokens]
        return
    with pytest.raises(RefusedTrajectory) as refused:
        sequence.append_sampled(turn, "p", most, vocabulary)
    assert refused.value.reason == flaw
    assert sequence.ids.tolist() == [1]


def test_a_token_costs_at_most_sixteen_bytes() -> None:
    sequence = TokenSequence(range(1000))
    for _ in range(100):
        sequence.append_sampled(Sample([7] * 100, [-0.5] * 100, "stop"), "p")
        sequence.append_bridge([8] * 10)
    stored = sequence.ids.buffer_info()[1] * sequence.ids.itemsize
    stored += sequence.sampled_logprobs.buffer_info()[1] * sequence.sampled_logprobs.itemsize
    assert stored <= 16 * len(sequence)
