"""Results of every shape, in JSON and protobuf, from Tinker and Twinkle: read, or refused in one
line as `MalformedReply`. No other exception, no warning, and no token is trained but with a finite
logprob of its own that is not above 0.
"""

import json
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrl_cli.rollout.ports import RefusedTrajectory, Sample
from mtrl_cli.rollout.tokens import LOGPROB_ALLOWANCE, TokenSequence
from mtrl_cli.servers.interface import ForwardBackwardResult
from mtrl_cli.servers.tinker import codec as tinker_codec
from mtrl_cli.servers.tinker import protobuf as tinker_protobuf
from mtrl_cli.servers.tinker.codec import MalformedReply
from mtrl_cli.servers.twinkle import codec as twinkle_codec
from mtrl_cli.wire import tinker_messages as wire

from .calls import datum

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.floats(),
    st.sampled_from([2**31, 2**63, 10**400, -(10**400), 1e300, -1e300, 1e-320, True, None]),
)
LEAVES = st.one_of(NUMBERS, st.sampled_from(["stop", "length", "abort", "", "1", "nan", "1e999"]))
ANY = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["tokens", "logprobs", "data", "loss", "x"]), inner),
    ),
    max_leaves=6,
)
IDS = st.lists(st.one_of(st.integers(0, 600), st.sampled_from([-1, 2**31 - 1, 2**31])), max_size=4)
SEQUENCE = st.fixed_dictionaries(
    {
        "tokens": st.one_of(IDS, IDS, ANY),
        "stop_reason": st.sampled_from(["stop", "length", "abort", 0, None, ["stop"]]),
    },
    optional={
        "logprobs": st.one_of(st.lists(NUMBERS, max_size=4), ANY, st.lists(ANY, max_size=3)),
        "new_input_feature": st.one_of(st.fixed_dictionaries({"input_ids": IDS}), ANY),
        "extra": ANY,
    },
)
ROWS = st.lists(st.one_of(st.lists(NUMBERS, max_size=4), ANY), max_size=3)
TINKER = st.one_of(
    st.fixed_dictionaries(
        {"sequences": st.one_of(st.lists(SEQUENCE, min_size=1, max_size=1), ANY)},
        optional={"weights": ANY, "prompt_logprobs": st.one_of(ROWS, ANY)},
    ),
    st.fixed_dictionaries({
        "loss_fn_outputs": st.lists(
            st.one_of(
                st.fixed_dictionaries({"logprobs": st.fixed_dictionaries({"data": ANY})}),
                st.fixed_dictionaries({"logprobs": ROWS, "elementwise_loss": ROWS}),
                ANY,
            ),
            max_size=2,
        ),
        "metrics": st.one_of(st.dictionaries(st.sampled_from(["loss:sum", "x\n"]), LEAVES), ANY),
    }),
)  # fmt: skip
TWINKLE = st.one_of(
    st.fixed_dictionaries({
        "samples": st.lists(
            st.one_of(st.fixed_dictionaries({"sequences": st.lists(SEQUENCE, max_size=2)}), ANY),
            min_size=1, max_size=1,
        ),
    }),
    st.fixed_dictionaries({
        "result": st.one_of(
            ANY,
            st.fixed_dictionaries({"loss": LEAVES, "logps": ROWS}),
            st.fixed_dictionaries({"loss": st.lists(LEAVES), "logps": st.lists(ROWS, max_size=2)}),
            st.tuples(st.lists(st.fixed_dictionaries({"logprobs": ROWS})), LEAVES).map(list),
        ),
    }),
)  # fmt: skip


def as_sent(value):
    """As JSON brings it, with NaN and Infinity, which Python's parser takes."""
    return json.loads(json.dumps(value))


def judged(read):
    """What a reader makes of a reply; None where it refuses it, in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return read()
        except MalformedReply as error:
            refused = str(error)
    assert refused.isprintable()
    assert 0 < len(refused) < 400
    return None


def never_wrong(sample):
    """What the reader lets pass is refused by the trajectory, or whole."""
    if sample is None:
        return
    assert isinstance(sample, Sample)
    assert sample.stop_reason in ("stop", "length")
    tokens = TokenSequence([1, 2])
    try:
        tokens.append_sampled(sample, "policy")
    except RefusedTrajectory:
        assert list(tokens.ids) == [1, 2]
        return
    assert list(tokens.ids) == [1, 2, *sample.tokens]
    assert all(type(token) is int and 0 <= token < 2**31 for token in sample.tokens)
    assert len(tokens.sampled_logprobs) == len(sample.tokens)
    assert all(-np.inf <= p <= LOGPROB_ALLOWANCE for p in tokens.sampled_logprobs)


def fits(result):
    """A pass's result has one row of the right length for each datum, or stops the run."""
    if result is None:
        return
    assert isinstance(result, ForwardBackwardResult)
    assert isinstance(result.loss, float)
    assert all(row.dtype == np.float32 for row in result.logprobs)
    assert all(name.isprintable() for name in result.metrics)


def tinker(value):
    never_wrong(judged(lambda: tinker_codec.sample_of(value)))
    fits(judged(lambda: tinker_codec.forward_backward_of(value)))
    scores = judged(lambda: tinker_codec.prompt_logprobs_of(value, 3))
    assert scores is None or np.isfinite(scores[1:]).all()
    judged(lambda: tinker_codec.metrics_of(value))


def twinkle(value):
    for sample in judged(lambda: twinkle_codec.samples_of(value, 1)) or ():
        never_wrong(sample)
    fits(judged(lambda: twinkle_codec.forward_backward_of(value, [datum()])))
    judged(lambda: twinkle_codec.metrics_of(value))


def packed(body):
    never_wrong(judged(lambda: tinker_protobuf.sample_of(body)))
    fits(judged(lambda: tinker_protobuf.forward_backward_of(body)))
    scores = judged(lambda: tinker_protobuf.prompt_logprobs_of(body, 3))
    assert scores is None or np.isfinite(scores[1:]).all()


@st.composite
def messages(draw):
    """A message that is right, but for its arrays, its numbers, or its bytes."""
    blob = st.one_of(
        st.binary(max_size=17),
        st.lists(st.integers(-2, 600), max_size=4).map(lambda v: np.array(v, "<i4").tobytes()),
        st.lists(st.floats(width=32), max_size=4).map(lambda v: np.array(v, "<f4").tobytes()),
        st.lists(st.integers(-8, 40), max_size=4).map(lambda v: np.array(v, "<i8").tobytes()),
    )
    if draw(st.booleans()):
        message = wire.new("SampleResponse")
        for _ in range(draw(st.integers(0, 2))):
            sequence = message.sequences.add()
            sequence.stop_reason = draw(st.sampled_from([0, 1, 2, -5]))
            sequence.tokens, sequence.logprobs = draw(blob), draw(blob)
        if draw(st.booleans()):
            message.prompt_logprobs = draw(blob)
    else:
        message = wire.new("ForwardBackwardOutput")
        for name in draw(st.sets(st.sampled_from(["loss:sum", "x\n"]))):
            message.metrics[name] = draw(st.floats())
        for _ in range(draw(st.integers(0, 2))):
            record = message.loss_fn_outputs.add()
            for key in draw(st.sets(st.sampled_from(["logprobs", "loss", "elementwise_loss"]))):
                field = record.fields[key]
                field.data, field.dtype = draw(blob), draw(st.integers(-1, 6))
                field.offsets = draw(blob)
    body = bytearray(message.SerializeToString())
    if body and draw(st.booleans()):
        body[draw(st.integers(0, len(body) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


def _examples(count):
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


def _tests(count):
    @_examples(count)
    @given(value=TINKER)
    def of_tinker(value):
        tinker(as_sent(value))

    @_examples(count)
    @given(value=TWINKLE)
    def of_twinkle(value):
        twinkle(as_sent(value))

    @_examples(count)
    @given(body=st.one_of(messages(), messages(), st.binary(max_size=60)))
    def of_protobuf(body):
        packed(body)

    return of_tinker, of_twinkle, of_protobuf


test_json_of_tinker, test_json_of_twinkle, test_protobuf = _tests(30)
_long = [pytest.mark.long(test) for test in _tests(2000)]
test_more_json_of_tinker, test_more_json_of_twinkle, test_more_protobuf = _long


@pytest.mark.parametrize("name", [b"\xecoss:sum", b"\xff", b"loss:\xc3"])
def test_a_text_that_is_no_utf8_is_refused(name):
    """Whoever reads it: a metric's name, a field's, the name of the weights."""

    def holds(number, body):
        return bytes([number << 3 | 2, len(body)]) + body

    def entry(value):
        return holds(1, name) + value

    readers = {
        holds(3, entry(b"\x11" + bytes(8))): tinker_protobuf.forward_backward_of,
        holds(2, holds(2, entry(holds(2, b"")))): tinker_protobuf.forward_backward_of,
        holds(1, b"") + b"\xca\xb8\x02" + bytes([len(name)]) + name: tinker_protobuf.sample_of,
    }
    for body, read in readers.items():
        with pytest.raises(MalformedReply, match="not a protobuf"):
            read(body)


@pytest.mark.parametrize("read", [tinker, twinkle])
def test_a_deep_value(read):
    """As deep as the parser goes, which is deeper than what is called from here can."""
    for depth in (900, 960, 985):
        deep = b"[" * depth + b"1" + b"]" * depth
        for body in (b'{"sequences":%b}', b'{"result":%b}', b'{"metrics":%b}', b'{"samples":%b}'):
            value = judged(lambda: tinker_codec.parse(body % deep))  # noqa: B023
            if value is not None:
                read(value)
