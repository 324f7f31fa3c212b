"""Seeds are hashes of what they are for: streams do not meet."""

from hypothesis import given
from hypothesis import strategies as st

from mtrl_cli.rollout import seeds

INDEX = st.integers(0, 2**40)


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.sets(INDEX, max_size=64))
def test_evaluation_plays_no_game_that_training_plays(
    run_seed: int, eval_seed: int, indices: set[int]
) -> None:
    trained = {seeds.training_task(run_seed, index) for index in indices}
    evaluated = {seeds.evaluation_task(eval_seed, index) for index in indices}
    rolled = {seeds.derive("task/rollout", run_seed, index) for index in indices}
    assert len(trained) == len(evaluated) == len(rolled) == len(indices)
    assert not trained & evaluated
    assert not rolled & (trained | evaluated)


def test_the_seeds_of_a_long_run_and_of_its_evaluation_are_disjoint() -> None:
    trained = {seeds.training_task(0, group) for group in range(100_000)}
    evaluated = {seeds.evaluation_task(0, game) for game in range(20_000)}
    assert (len(trained), len(evaluated)) == (100_000, 20_000)
    assert not trained & evaluated


@given(INDEX, INDEX)
def test_evaluation_seeds_do_not_depend_on_the_run(seed: int, index: int) -> None:
    assert seeds.evaluation_task(seed, index) == seeds.derive("task/eval", seed, index)
    assert 0 <= seeds.evaluation_task(seed, index) < 2**seeds.SEED_BITS


@given(st.text(max_size=8), INDEX, INDEX, st.integers(0, 64), st.integers(0, 3), INDEX)
def test_the_seeds_of_a_trajectorys_turns_are_those_of_each_turn(
    stream: str, run_seed: int, group: int, member: int, refill: int, turn: int
) -> None:
    of_turns = seeds.sampling_of_turns(stream, run_seed, group, member, refill)
    for one in (0, turn, 0):
        assert of_turns(one) == seeds.sampling(stream, run_seed, group, member, refill, one)
