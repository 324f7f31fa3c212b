"""Several forward/backward calls and one step are one call and one step, on any server's loss."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.errors import MtrlError, UsageError
from mtrl_cli.rollout.events import ignore
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.servers.interface import Datum, ForwardBackwardResult, LossReduction, LossSpec
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.operations import TrainingError
from mtrl_cli.training.run import train
from mtrl_cli.training.step.accumulation import accumulate, calls_of
from mtrl_cli.training.step.batch import Batch, build_batch
from mtrl_cli.training.step.groups import GroupRules, training_groups
from tests.rollout.helpers import admission
from tests.training.helpers import group, member
from tests.training.runs import lines, train_on
from tests.training.test_end_to_end import Player, halves


def batch_of(lengths: Sequence[int]) -> Batch:
    """Trajectories of a prompt of 3 tokens and so many sampled ones, all with an advantage."""
    facts = admission(size=len(lengths))
    members = [
        member(facts, n, float(n % 2), [([5 + n] * length, [-0.5] * length, ())])
        for n, length in enumerate(lengths)
    ]
    return build_batch(training_groups([group(facts, members)], GroupRules(step=0)), "mean", None)


def sizes(calls: list[list[Datum]]) -> list[list[int]]:
    return [[len(datum.tokens) for datum in data] for data in calls]


def test_datums_are_cut_in_order_into_calls_within_the_bound() -> None:
    batch = batch_of([3, 4, 2, 7, 1])  # datums of 5, 6, 4, 9, 3 tokens
    assert sizes(calls_of(batch, "sum", 10)) == [[5], [6, 4], [9], [3]]
    assert sizes(calls_of(batch, "sum", 12)) == [[5, 6], [4], [9, 3]]
    assert sizes(calls_of(batch, "sum", 27)) == [[5, 6, 4, 9, 3]]
    for unbounded in (None, 0):
        assert sizes(calls_of(batch, "sum", unbounded)) == [[5, 6, 4, 9, 3]]


def test_a_trajectory_larger_than_the_bound_is_refused_and_not_cut() -> None:
    with pytest.raises(TrainingError, match=r"datum 3 has 9 tokens, more than .* \(8\)"):
        calls_of(batch_of([3, 4, 2, 7, 1]), "sum", 8)


def test_several_calls_need_a_known_reduction_and_one_does_not() -> None:
    batch = batch_of([3, 4])
    with pytest.raises(TrainingError, match=r"set server\.loss_reduction"):
        calls_of(batch, None, 6)
    [data] = calls_of(batch, None, 11)
    assert data == list(batch.data)


# What a server makes of the calls, from the definitions in `interface.LossReduction`. `slope` is
# the derivative of a token's loss for advantage 1, whatever the loss.

Slopes = dict[int, NDArray[np.float64]]


def gradient(calls: list[list[Datum]], reduction: LossReduction, slopes: Slopes) -> float:
    per_call = [
        [slopes[int(d.targets[2])][: len(d.tokens)] * d.advantages for d in data] for data in calls
    ]
    datums = [values for data in per_call for values in data]
    match reduction:
        case "sum":
            return float(sum(values.sum() for values in datums))
        case "datum_mean":
            return float(np.mean([values.mean() for values in datums]))
        case "call_mean":
            return float(np.mean([sum(values.sum() for values in data) for data in per_call]))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=7),
    bound=st.integers(11, 40),
    reduction=st.sampled_from(["sum", "datum_mean", "call_mean"]),
)
def test_a_servers_average_is_made_up_for(
    lengths: list[int], bound: int, reduction: LossReduction
) -> None:
    batch = batch_of(lengths)
    rng = np.random.default_rng(1)
    slopes = {int(datum.targets[2]): rng.standard_normal(20) for datum in batch.data}
    wanted = gradient([list(batch.data)], "sum", slopes)
    found = gradient(calls_of(batch, reduction, bound), reduction, slopes)
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("reduction", ["sum", "call_mean"])
async def test_the_loss_is_the_steps_whatever_its_calls(reduction: LossReduction) -> None:
    batch = batch_of([3, 5, 4, 6])

    class Server:
        """Answers a call with its own loss: the sum of what it was sent."""

        async def forward_backward(
            self, data: Sequence[Datum], loss: LossSpec
        ) -> ForwardBackwardResult:
            total = float(sum(datum.advantages.sum(dtype=np.float64) for datum in data))
            return ForwardBackwardResult(total, [d.logprobs for d in data], {})

    whole = await accumulate(Server(), batch, LossSpec("ppo", {}), reduction)
    several = await accumulate(Server(), batch, LossSpec("ppo", {}), reduction, 12)
    assert (whole.calls, several.calls) == (1, 3)
    assert whole.loss == pytest.approx(sum(d.advantages.sum() for d in batch.data))
    assert several.loss == pytest.approx(whole.loss)


# --- whole runs -----------------------------------------------------------------------------


@pytest.fixture
async def embedded(tmp_path: Path) -> Any:
    async with EmbeddedServer(tmp_path / "store") as server:
        yield server, tmp_path / "store"


async def published(
    embedded: tuple[EmbeddedServer, Path], runs: Path, *overrides: str
) -> tuple[dict[str, NDArray[np.float32]], list[dict[str, Any]]]:
    """The arrays of the policy after two steps, and the run's metrics."""
    server, store = embedded
    fixed = (
        f'server.base_url="{server.url}"', f"server.api_key={server.api_key}",
        "group.size=6", "group.per_step=3", "eval.games=0", "train.steps=2", "train.kl=0.1",
        "train.checkpoint_every=0", "train.lora_rank=null", "train.learning_rate=1e-3",
        "budget.trajectory_tokens=400",
        # Adam's first step is the gradient's sign. Where that is rounding noise, eps must be more.
        "train.eps=1e-5",
    )  # fmt: skip
    composed = compose("blackjack", [*fixed, f'run.dir="{runs}"', *overrides])
    run = await train(resolve(composed), composed.yaml, observer=ignore, stop=StopRequest())
    assert run.policy is not None
    name = run.policy.rpartition("sampler_weights/")[2].replace("/", "+")
    [file] = store.glob(f"models/*/sampler_weights/{name}.npz")
    with np.load(file) as stored:
        arrays = {key: stored[key] for key in stored.files if not key.startswith("__")}
    return arrays, lines(run, "metrics.jsonl")


async def test_n_calls_and_a_step_are_one_call_and_a_step(
    embedded: tuple[EmbeddedServer, Path], tmp_path: Path
) -> None:
    still, _ = await published(embedded, tmp_path / "none", "train.learning_rate=0")
    whole, once = await published(embedded, tmp_path / "one")
    cut, often = await published(embedded, tmp_path / "many", "train.max_tokens_per_call=400")
    assert [figures["calls"] for figures in once] == [1, 1]
    assert all(figures["calls"] >= 3 for figures in often)
    assert [figures["reward"] for figures in once] == [figures["reward"] for figures in often]
    assert whole.keys() == cut.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(cut[name], value, rtol=0, atol=1e-5)
        assert np.abs(value - still[name]).max() > 1e-3  # it has moved a hundred times as far


@pytest.mark.parametrize(
    "fault",
    [faults.drop_reply(), faults.fail("out of memory", "server"), faults.status(400, "no")],
    ids=["lost", "failed", "refused"],
)
async def test_a_partial_accumulation_is_never_stepped(tmp_path: Path, fault: faults.Fault) -> None:
    options = (
        "train.steps=2", "train.kl=0.1", "group.size=6", "server.loss_reduction=sum",
        "train.max_tokens_per_call=1024",
    )  # fmt: skip
    async with ScriptedPolicyServer(
        sampler=Player(), prompt_logprobs=halves, dedupes=False
    ) as server:
        server.faults.add("forward_backward", fault, skip=1)
        with pytest.raises(MtrlError, match="forward_backward 3"):
            await train_on(server.url, tmp_path, *options)
        assert len(server.requests("forward_backward")) == 2  # the third one is not even sent
        assert server.requests("optim_step") == []
        assert server.models == {}  # gone, and the first call's gradients with it


async def test_calls_that_cannot_be_weighted_are_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    async with ScriptedPolicyServer(sampler=Player()) as server:
        with pytest.raises(UsageError, match=r"train\.max_tokens_per_call: .*loss_reduction"):
            await train_on(server.url, tmp_path, "train.max_tokens_per_call=1024")
        assert server.applied() == 0


async def test_each_call_is_in_the_ledger_before_it_is_sent(tmp_path: Path) -> None:
    options = ("train.steps=1", "group.size=6", "server.loss_reduction=sum")
    async with ScriptedPolicyServer(sampler=Player()) as server:
        run = await train_on(server.url, tmp_path, *options, "train.max_tokens_per_call=1024")
        sent = [json.loads(request.raw) for request in server.requests("forward_backward")]
    calls = [line for line in lines(run, "ledger.jsonl") if line.get("kind") == "forward_backward"]
    assert [line["seq"] for line in calls] == [call["seq_id"] for call in sent]
    assert len(sent) > 1
    data = [datum for call in sent for datum in call["forward_backward_input"]["data"]]
    assert len(data) == lines(run, "metrics.jsonl")[0]["trained_episodes"]
    for call in sent:
        counts = [
            len(datum["model_input"]["chunks"][0]["tokens"])
            for datum in call["forward_backward_input"]["data"]
        ]
        assert 0 < sum(counts) <= 1024
