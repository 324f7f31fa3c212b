"""The sampler: bit-for-bit independence, agreement with the trainer, parameters, life cycle."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from mtrl_cli.local.engine import (
    Completion,
    Datum,
    Sampler,
    SampleSpec,
    Shape,
    TrainableModel,
    Weights,
)
from mtrl_cli.local.engine.draw import Rules, choose, uniform
from mtrl_cli.local.engine.types import Array
from mtrl_cli.local.engine.weights import frozen, initial

SHAPE = Shape(vocab=210, context=320)


def make_weights(seed: int) -> Weights:
    """Weights with sharp attention and a peaked head, so that rounding could show."""
    rng = np.random.default_rng(seed)
    return frozen(
        (name, 1.5 * value + 0.1 * rng.standard_normal(value.shape).astype(np.float32))
        for name, value in initial(SHAPE, seed).items()
    )


WEIGHTS = {"a": make_weights(1), "b": make_weights(2)}
PREAMBLE = np.random.default_rng(0).integers(0, SHAPE.vocab, 100)


def make_spec(index: int) -> SampleSpec:
    """Requests of all kinds: shared and own prompts, every length modulo the block, filters."""
    rng = np.random.default_rng(1000 + index)
    own = rng.integers(0, SHAPE.vocab, 1 + (13 * index) % 97)
    prompt = own if index % 4 == 3 else np.concatenate([PREAMBLE, own])
    return SampleSpec(
        tuple(prompt.tolist()),
        max_tokens=1 + (7 * index) % 50,
        stop_ids=frozenset({5, 9}),
        temperature=(1.0, 0.7, 0.0)[index % 3],
        seed=index,
        top_k=10 if index % 5 == 0 else -1,
        top_p=0.8 if index % 7 == 0 else 1.0,
        prompt_logprobs=index % 6 == 0,
    )


def model_of(index: int) -> str:
    return "b" if index % 8 == 7 else "a"


def run(indices: Iterable[int], sampler: Sampler | None = None) -> dict[int, Completion]:
    sampler = sampler or Sampler(SHAPE)
    for index in indices:
        name = model_of(index)
        sampler.submit(index, name, WEIGHTS[name], make_spec(index))
    return drain(sampler)


def drain(sampler: Sampler) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    while sampler.active:
        for key, completion in sampler.step():
            assert isinstance(key, int)
            assert key not in done
            done[key] = completion
    return done


@pytest.fixture(scope="module")
def alone() -> dict[int, Completion]:
    """Every request by itself, in a fresh sampler: the reference."""
    return {index: run([index])[index] for index in range(64)}


@pytest.mark.parametrize("max_rows", [64, 50, 3])
def test_a_request_draws_the_same_bits_in_any_company(alone, max_rows: int) -> None:
    assert run(range(64), Sampler(SHAPE, max_rows)) == alone


def test_order_and_slot_do_not_matter(alone) -> None:
    assert run(reversed(range(64))) == alone


def test_arriving_in_the_middle_does_not_matter(alone) -> None:
    sampler, done = Sampler(SHAPE, 20), {}
    for index in range(64):
        name = model_of(index)
        sampler.submit(index, name, WEIGHTS[name], make_spec(index))
        done |= dict(sampler.step())
    assert done | drain(sampler) == alone


def test_a_warm_cache_changes_nothing(alone) -> None:
    sampler = Sampler(SHAPE)
    run(range(64), sampler)
    assert run(range(64), sampler) == alone
    sampler.forget("a")
    assert run(range(64), sampler) == alone


def test_a_starved_cache_changes_nothing(alone) -> None:
    assert run(range(64), Sampler(SHAPE, cache_bytes=1)) == alone


def test_a_prefix_cached_by_another_prompt_changes_nothing(alone) -> None:
    """Also blocks that were computed without their output, in the middle of a longer prompt."""
    sampler = Sampler(SHAPE)
    for index in range(64):
        whole = make_spec(index).tokens
        name = model_of(index)
        longer = SampleSpec((*whole, *whole[:40]), 1, seed=0)
        sampler.submit(1000 + index, name, WEIGHTS[name], longer)
    drain(sampler)
    assert run(range(64), sampler) == alone


def test_trainer_and_sampler_agree(alone) -> None:
    for name, weights in WEIGHTS.items():
        chosen = [index for index in alone if model_of(index) == name]
        streams = [
            np.array([*make_spec(index).tokens, *alone[index].tokens], np.int32) for index in chosen
        ]
        data = [Datum(ids[:-1], {"target_tokens": ids[1:]}) for ids in streams]
        for index, found in zip(
            chosen, TrainableModel(SHAPE, weights, None).forward(data), strict=True
        ):
            completion = alone[index]
            assert found[-len(completion.tokens) :] == pytest.approx(completion.logprobs, abs=1e-4)
            if completion.prompt_logprobs is not None:
                first, *rest = completion.prompt_logprobs
                assert first is None
                assert found[: len(rest)] == pytest.approx(rest, abs=1e-4)


def test_decoding_continues_as_a_prompt_would() -> None:
    """Greedy: a completion cut in two, its first half sent as prompt, goes on the same."""
    spec = SampleSpec(tuple(PREAMBLE.tolist()), 60, temperature=0.0)
    whole = one(spec)
    rest = one(replace(spec, tokens=(*spec.tokens, *whole.tokens[:30]), max_tokens=30))
    assert rest.tokens == whole.tokens[30:]
    assert rest.logprobs == pytest.approx(whole.logprobs[30:], abs=1e-4)


def one(spec: SampleSpec, sampler: Sampler | None = None) -> Completion:
    sampler = sampler or Sampler(SHAPE)
    sampler.submit(0, "a", WEIGHTS["a"], spec)
    return drain(sampler)[0]


def test_stop_tokens_end_a_completion_and_belong_to_it() -> None:
    free = one(SampleSpec((1, 2, 3), 40, seed=1))
    assert free.stop_reason == "length"
    assert len(free.tokens) == len(free.logprobs) == 40
    stop = free.tokens[10]
    cut = one(SampleSpec((1, 2, 3), 40, frozenset({stop}), seed=1))
    assert cut.stop_reason == "stop"
    assert cut.tokens == free.tokens[: free.tokens.index(stop) + 1]


def test_seeds() -> None:
    spec = SampleSpec((1, 2, 3), 20, seed=7)
    assert one(spec) == one(spec)
    assert one(spec).tokens != one(replace(spec, seed=8)).tokens
    fresh = replace(spec, seed=None)
    assert one(fresh).tokens != one(fresh).tokens


def test_logprobs_are_of_the_unscaled_distribution() -> None:
    cold = one(SampleSpec((1, 2, 3), 20, temperature=0.5, top_k=20, seed=7))
    ids = np.array([1, 2, 3, *cold.tokens], np.int32)
    datum = Datum(ids[:-1], {"target_tokens": ids[1:]})
    (found,) = TrainableModel(SHAPE, WEIGHTS["a"], None).forward([datum])
    assert found[-20:] == pytest.approx(cold.logprobs, abs=1e-4)


def test_the_context_bounds_a_completion() -> None:
    full = one(SampleSpec(tuple([3] * (SHAPE.context - 2)), 50, seed=1))
    assert (len(full.tokens), full.stop_reason) == (2, "length")


def test_the_longest_prompt_is_one_token_less_than_the_context() -> None:
    """So a trajectory whose logprobs are asked for is no longer: see `TrainingPlan.budget`."""
    full = one(SampleSpec(tuple([3] * (SHAPE.context - 1)), 1, prompt_logprobs=True))
    assert full.prompt_logprobs is not None
    assert len(full.prompt_logprobs) == SHAPE.context - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ()}, "empty"),
        ({"tokens": (SHAPE.vocab,)}, "vocabulary"),
        ({"tokens": (1,) * SHAPE.context}, "no room"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
    ],
)
def test_bad_requests_are_refused(change: dict[str, object], message: str) -> None:
    spec = replace(SampleSpec((1, 2), 3), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        Sampler(SHAPE).submit(0, "a", WEIGHTS["a"], spec)


def test_cancelled_requests_leave_no_trace(alone) -> None:
    sampler = Sampler(SHAPE, 4)
    for index in range(8):
        sampler.submit(index, "a", WEIGHTS["a"], make_spec(index))
    assert sampler.active == 8
    sampler.step()
    for key in (0, 1, 6, "unknown"):
        sampler.cancel(key)
    done = drain(sampler)
    assert not {0, 1, 6} & set(done)
    assert sampler.active == 0
    assert all(done[index] == alone[index] for index in done if index != 7)


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.0, 0.2, 0.05], np.float32) + 1e-30)
    count = 40_000
    tokens, logprobs = draw_many(logits, count)
    shares = np.bincount(tokens, minlength=5) / count
    assert shares == pytest.approx([0.5, 0.25, 0, 0.2, 0.05], abs=0.01)
    assert logprobs[tokens == 0] == pytest.approx(np.log(0.5), abs=1e-6)


def test_filters_keep_the_most_likely() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.15, 0.05], np.float32))
    assert set(draw_many(logits, 2000, top_k=2)[0]) == {1, 2}
    assert set(draw_many(logits, 2000, top_p=0.8)[0]) == {1, 2, 3}
    assert set(draw_many(logits, 2000, temperature=0.0)[0]) == {1}
    assert set(draw_many(logits, 2000, temperature=0.02)[0]) == {1}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-20, 1e-38, 1e-44, 1e-50, 1e-300])
def test_however_cold_the_most_likely_token_is_drawn(temperature: float) -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.15, 0.05], np.float32))
    assert set(draw_many(logits, 100, temperature=temperature)[0]) == {1}


def draw_many(
    logits: Array, count: int, temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0
) -> tuple[Array, Array]:
    numbers = uniform(np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64))
    rules = Rules(np.full(count, temperature), np.full(count, top_k), np.full(count, top_p))
    return choose(np.tile(logits, (count, 1)), rules, numbers)
