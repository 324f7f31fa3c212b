"""The trainer: the batch plan, losses, Adam, adapters, states, refusals."""

import numpy as np
import pytest

from mtrl_cli.local.engine import AdamParams, Datum, Lora, Shape, TrainableModel
from mtrl_cli.local.engine.batches import plan
from mtrl_cli.local.engine.losses import loss_and_slope
from mtrl_cli.local.engine.types import LossName
from mtrl_cli.local.engine.weights import frozen, initial, load_base, save_base

SHAPE = Shape(vocab=50, width=32, layers=2, heads=4, context=200)
BASE = frozen(
    (name, value + 0.05 * np.random.default_rng(3).standard_normal(value.shape).astype("f4"))
    for name, value in initial(SHAPE, 0).items()
)


def batch(shared: int, lengths: tuple[int, ...], seed: int = 0) -> list[Datum]:
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, SHAPE.vocab, shared)
    data = []
    for length in lengths:
        ids = np.concatenate([prefix, rng.integers(0, SHAPE.vocab, length + 1)]).astype(np.int32)
        advantages = rng.standard_normal(len(ids) - 1).astype(np.float32)
        advantages[:shared] = 0
        data.append(
            Datum(
                ids[:-1],
                {
                    "target_tokens": ids[1:],
                    "weights": np.abs(advantages),
                    "logprobs": np.where(advantages == 0, 0, -4).astype(np.float32),
                    "advantages": advantages,
                },
            )
        )
    return data


def gradient(data: list[Datum], loss: LossName = "importance_sampling", lora: Lora | None = None):
    """Logprobs, and the parameters' move under a plain-gradient step read off Adam's momentum."""
    model = TrainableModel(SHAPE, BASE, lora)
    output = model.forward_backward(data, loss, {})
    model.optim_step(AdamParams(learning_rate=0.0, beta1=0.0))
    state = model.state(optimizer=True)
    return output, {k: v for k, v in state.items() if k.startswith("momentum/")}


@pytest.mark.parametrize("shared", [0, 1, 40, 150])
def test_shared_and_repeated_rows_equal_single_rows(shared: int) -> None:
    data = batch(shared, (5, 30, 1, 17, 30, 44))
    again = {**data[1].inputs, "advantages": np.full(shared + 30, 0.3, "f4")}
    data.append(Datum(data[1].tokens, again))
    together, whole = gradient(data)
    single = [gradient([datum]) for datum in data]
    assert together.loss == pytest.approx(sum(output.loss for output, _ in single), rel=1e-4)
    for found, (output, _) in zip(together.logprobs, single, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, output.logprobs[0], atol=1e-5)
    for name, value in whole.items():
        parts = sum(part[name] for _, part in single)
        np.testing.assert_allclose(value, parts, atol=2e-4 * np.abs(parts).max())


def test_the_plan_shares_and_deduplicates() -> None:
    data = batch(40, (5, 30, 1, 17))
    cut = plan([*data, data[1], data[1]])
    assert len(cut.prefix) == 40
    assert sorted(row.members for micro in cut.batches for row in micro) == [
        (0,), (1, 4, 5), (2,), (3,)
    ]  # fmt: skip


def test_results_repeat_bit_for_bit() -> None:
    data = batch(30, tuple(range(1, 60)))
    first = gradient(data)
    for _ in range(3):
        again = gradient(data)
        assert again[0].loss == first[0].loss
        assert all(np.array_equal(again[1][name], first[1][name]) for name in first[1])


def test_gradients_accumulate_until_the_step() -> None:
    data = batch(10, (5, 9, 7, 3))
    _, whole = gradient(data)
    model = TrainableModel(SHAPE, BASE, None)
    for part in (data[:1], data[1:]):
        model.forward_backward(part, "importance_sampling", {})
    model.optim_step(AdamParams(learning_rate=0.0, beta1=0.0))
    parts = model.state(optimizer=True)
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, atol=1e-5 * max(1, np.abs(value).max()))
    assert model.optim_step(AdamParams())["grad_norm"] == 0


def test_losses_by_hand() -> None:
    logp = np.array([-1.0, -1.0, -1.0, -2.0, -3.0])
    inputs = {
        "weights": np.array([1.0, 0.5, 0.0, 2.0, 1.0]),
        "logprobs": np.array([-1.0, -2.0, -2.0, -1.0, 0.0]),
        "advantages": np.array([1.0, 1.0, -1.0, -1.0, 0.0]),
    }
    e = np.e
    expected: dict[LossName, tuple[list[float], list[float]]] = {
        "cross_entropy": ([1, 0.5, 0, 4, 3], [-1, -0.5, 0, -2, -1]),
        "importance_sampling": ([-1, -e, e, 1 / e, 0], [-1, -e, e, 1 / e, 0]),
        "ppo": ([-1, -1.2, e, 0.8, 0], [-1, 0, e, 0, 0]),
        "cispo": ([1, 1.2, -1.2, -1.6, 0], [-1, -1.2, 1.2, 0.8, 0]),
    }
    for loss, (terms, slopes) in expected.items():
        found = loss_and_slope(loss, logp, inputs, (0.8, 1.2))
        np.testing.assert_allclose(found[0], terms, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found[1], slopes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", ["ppo", "cispo"])
@pytest.mark.parametrize("clip", [(0.8, 1.2), (0.5, 1.0), (1.0, 3.0), (0.0, 1.2)])
def test_clipping_below_at_and_beyond_the_bounds(loss: LossName, clip: tuple[float, float]) -> None:
    """Both signs of the advantage; one value and slope at a time, from the definitions."""
    low, high = clip
    ratios = [low - 0.2, low, low + 1e-3, 1.0, high - 1e-3, high, high + 0.2, 20.0]
    for ratio in [ratio for ratio in ratios if ratio > 0]:
        for advantage in (2.0, -0.5):
            logp = np.array([-1.3])
            inputs = {
                "logprobs": logp - np.log(ratio), "advantages": np.array([advantage])
            }  # fmt: skip
            bound = min(max(ratio, low), high)
            if loss == "cispo":
                value, slope = -bound * advantage * logp[0], -bound * advantage
            else:
                value = -min(ratio * advantage, bound * advantage)
                clipped = ratio > high if advantage > 0 else ratio < low
                slope = 0.0 if clipped else -ratio * advantage
            # At a bound itself the two branches meet; rounding decides which side it is.
            if loss == "ppo" and min(abs(ratio - low), abs(ratio - high)) < 1e-12:
                terms, _ = loss_and_slope(loss, logp, inputs, clip)
                np.testing.assert_allclose(terms, [value], rtol=1e-9)
                continue
            terms, slopes = loss_and_slope(loss, logp, inputs, clip)
            np.testing.assert_allclose(terms, [value], rtol=1e-9)
            np.testing.assert_allclose(slopes, [slope], rtol=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_slopes_are_central_differences_on_both_sides_of_the_bounds(
    loss: LossName, sign: float
) -> None:
    logp = np.linspace(-3, -1, 41) + 1e-3  # ratios from 0.37 to 2.7, none within 1e-6 of a bound
    inputs = {"logprobs": np.full(41, -2.0), "advantages": np.full(41, sign * 0.7)}
    _, slopes = loss_and_slope(loss, logp, inputs, (0.8, 1.2))
    step = 1e-6
    above, _ = loss_and_slope(loss, logp + step, inputs, (0.8, 1.2))
    below, _ = loss_and_slope(loss, logp - step, inputs, (0.8, 1.2))
    np.testing.assert_allclose(slopes, (above - below) / (2 * step), atol=1e-8)
    beyond = logp + 2 > np.log(1.2) if sign > 0 else logp + 2 < np.log(0.8)
    assert ((slopes == 0) == (beyond if loss == "ppo" else np.zeros(41, bool))).all()


def test_gradients_of_clipped_tokens_are_those_of_the_others_alone() -> None:
    """A whole model: tokens beyond ppo's bounds might as well not be there."""
    (good,) = batch(0, (30,))
    model = TrainableModel(SHAPE, BASE, None)
    (logp,) = model.forward([good])
    ratio = np.where(np.arange(30) % 2, 1.5, 1.0)
    inputs = {
        **good.inputs, "logprobs": (logp - np.log(ratio)).astype("f4"),
        "advantages": np.ones(30, "f4"),
    }  # fmt: skip
    without = {**inputs, "advantages": np.where(np.arange(30) % 2, 0, 1).astype("f4")}
    _, clipped = gradient([Datum(good.tokens, inputs)], "ppo")
    _, alone = gradient([Datum(good.tokens, without)], "ppo")
    for name, value in alone.items():
        np.testing.assert_allclose(clipped[name], value, atol=1e-6 * max(1, np.abs(value).max()))


def test_adam_by_hand() -> None:
    data = batch(0, (9,))
    _, g = gradient(data)
    model = TrainableModel(SHAPE, BASE, None)
    adam = AdamParams(0.01, 0.9, 0.95, 1e-8, weight_decay=0.1, grad_clip_norm=0.5)
    norm = sum(float((value**2).sum()) for value in g.values()) ** 0.5
    p, m, v = BASE["layer0.up"].astype(np.float64), 0.0, 0.0
    for step in (1, 2):
        # The second step is on other gradients (zero), so the momentum shows.
        now = g["momentum/layer0.up"].astype(np.float64) * 0.5 / norm if step == 1 else 0
        m, v = 0.9 * m + 0.1 * now, 0.95 * v + 0.05 * now**2
        move = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
        p = p - 0.01 * (move + 0.1 * p)
    model.forward_backward(data, "importance_sampling", {})
    metrics = model.optim_step(adam)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    model.optim_step(adam)
    np.testing.assert_allclose(model.snapshot()["layer0.up"], p, atol=1e-6)


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=16, train_unembed=True)])
def test_training_learns(lora: Lora | None) -> None:
    data = batch(20, (12, 12, 12))
    model = TrainableModel(SHAPE, BASE, lora)
    losses = []
    for _ in range(60):
        losses.append(model.forward_backward(data, "cross_entropy", {}).loss)
        model.optim_step(AdamParams(learning_rate=0.01))
    assert losses[-1] < 0.2 * losses[0]


def test_lora_starts_at_the_base_and_trains_what_it_names() -> None:
    lora = Lora(rank=2, seed=5, train_mlp=False)
    model = TrainableModel(SHAPE, BASE, lora)
    before = model.snapshot()
    assert all(np.array_equal(before[name], BASE[name]) for name in BASE)
    model.forward_backward(batch(0, (9, 4)), "cross_entropy", {})
    model.optim_step(AdamParams(learning_rate=0.1))
    moved = {name for name, value in model.snapshot().items() if (value != BASE[name]).any()}
    assert moved == {f"layer{n}.{part}" for n in range(2) for part in ("qkv", "out")}
    assert model.state(False)["parameter/layer0.qkv.A"].shape == (32, 2)
    other = TrainableModel(SHAPE, BASE, Lora(rank=2, seed=6)).state(False)
    assert (other["parameter/layer0.qkv.A"] != model.state(False)["parameter/layer0.qkv.A"]).any()


def test_snapshots_are_immutable_and_detached() -> None:
    model = TrainableModel(SHAPE, BASE, None)
    snapshot = model.snapshot()
    with pytest.raises(ValueError, match="read-only"):
        snapshot["embed"][0, 0] = 1
    model.forward_backward(batch(0, (9,)), "cross_entropy", {})
    model.optim_step(AdamParams(learning_rate=0.1))
    assert np.array_equal(snapshot["embed"], BASE["embed"])
    assert not np.array_equal(model.snapshot()["embed"], BASE["embed"])


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
def test_a_state_continues_bit_for_bit(lora: Lora | None) -> None:
    data, adam = batch(4, (9, 6)), AdamParams(learning_rate=0.01)

    def train(model: TrainableModel) -> None:
        model.forward_backward(data, "cross_entropy", {})
        model.optim_step(adam)

    model = TrainableModel(SHAPE, BASE, lora)
    train(model)
    state = model.state(optimizer=True)
    train(model)
    twin = TrainableModel(SHAPE, BASE, lora)
    twin.load_state(state, optimizer=True)
    train(twin)
    assert all(np.array_equal(twin.snapshot()[n], v) for n, v in model.snapshot().items())
    with pytest.raises(ValueError, match="another model or no optimizer"):
        twin.load_state(model.state(optimizer=False), optimizer=True)
    other = TrainableModel(SHAPE, BASE, Lora(rank=3))
    with pytest.raises(ValueError, match=r"no parameter|the model's"):
        other.load_state(state, optimizer=False)


def test_bad_data_is_refused_and_changes_nothing() -> None:
    model = TrainableModel(SHAPE, BASE, None)
    (good,) = batch(0, (6,))
    for inputs, loss, message in [
        ({"target_tokens": good.inputs["target_tokens"]}, "cross_entropy", "weights is missing"),
        ({**good.inputs, "target_tokens": np.full(6, SHAPE.vocab)}, "ppo", "vocabulary"),
        ({**good.inputs, "advantages": np.ones(5, "f4")}, "ppo", "shape"),
        ({**good.inputs, "advantages": np.full(6, np.nan, "f4")}, "cispo", "not finite"),
        (good.inputs, "dro", "unknown loss"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.forward_backward([Datum(good.tokens, inputs)], loss, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="clip_lo"):
        model.forward_backward([good], "ppo", {"clip_lo": 0.5})
    with pytest.raises(ValueError, match="no data"):
        model.forward([])
    assert model.optim_step(AdamParams())["grad_norm"] == 0


def test_the_base_file_is_small_and_reads_back(tmp_path) -> None:
    file = save_base(tmp_path, SHAPE, BASE)
    first = file.read_bytes()
    shape, weights = load_base(tmp_path)
    assert shape == SHAPE
    for name, value in weights.items():
        assert value.dtype == np.float32
        assert not value.flags.writeable
        np.testing.assert_allclose(value, BASE[name], rtol=1e-3, atol=1e-4)
    save_base(tmp_path, shape, weights)
    assert file.read_bytes() == first
