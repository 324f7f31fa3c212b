"""Each algorithm on the wire: what the training calls held, against values computed anew.

Rewards and tokens come from the run's saved trajectories; everything from there to the request is
computed here a second time, in plain numpy.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import RunFinished
from tests.training.runs import lines, train_on, trajectories
from tests.training.test_end_to_end import END, Player, call, halves

Floats = NDArray[np.float64]


PER_STEP = 6
"""Groups of a step; enough that some have members that differ, whatever the cards."""


class Gambler(Player):
    """Hits or stands by the seed, so that the members of a group differ in length and reward."""

    def __call__(self, tokens: Any, seed: int) -> tuple[list[int], list[float]]:
        ids = call("hit" if seed % 3 else "stand")
        return ids, [-(len(tokens) + position) / 1024 for position, _ in enumerate(ids)]


async def trained(runs: Path, *overrides: str, **server: Any) -> tuple[RunFinished, list[Any]]:
    """A run, and the bodies of its training calls in order."""
    sizes = ("group.size=4", f"group.per_step={PER_STEP}", "train.kl_end_step=null")
    async with ScriptedPolicyServer(**{"sampler": Gambler(), **server}) as made:
        run = await train_on(made.url, runs, *sizes, *overrides)
        calls = [
            request.body
            for request in made.requests()
            if request.endpoint in ("forward_backward", "optim_step")
        ]
    return run, calls


def inputs(body: Any) -> list[Any]:
    return [datum["loss_fn_inputs"] for datum in body["forward_backward_input"]["data"]]


def members(run: RunFinished, step: int = 1) -> dict[int, list[Any]]:
    """Group → its members in order."""
    groups: dict[int, list[Any]] = {}
    for record in sorted(trajectories(run, step), key=lambda one: (one["group"], one["member"])):
        groups.setdefault(record["group"], []).append(record)
    return groups


def advantage(form: str, rewards: Floats) -> Floats:
    if np.ptp(rewards) == 0:
        return np.zeros(len(rewards))
    if form == "leave_one_out":
        others = [np.delete(rewards, n).mean() for n in range(len(rewards))]
        return np.asarray(rewards - others)
    centred = rewards - np.mean(rewards)
    return centred / np.sqrt(np.mean(centred**2)) if form == "mean_std" else np.asarray(centred)


def expected(
    run: RunFinished, form: str, weighting: str, *, kl: float = 0.0, length: int = 1024
) -> list[Floats]:
    """The advantages of every datum, on its sampled tokens only."""
    groups = members(run)
    counts = [len(one["logprobs"]) for group in groups.values() for one in group]
    found = []
    for group in groups.values():
        rewards = np.array([one["reward"] for one in group])
        for one, value in zip(group, advantage(form, rewards), strict=True):
            weight = {
                "token_mean": 1 / sum(counts),
                "sequence_mean": 1 / (len(counts) * len(one["logprobs"])),
                "constant": 1 / (len(counts) * length),
            }[weighting]
            per_token = value - kl * (np.array(one["logprobs"]) + 0.5)
            if per_token.any():
                found.append(weight * per_token)
    return found


def sent(body: Any) -> list[Floats]:
    return [np.array(one["advantages"]["data"]) for one in inputs(body)]


def check(body: Any, wanted: list[Floats]) -> None:
    found = sent(body)
    assert len(found) == len(wanted) > 0
    for advantages, values in zip(found, wanted, strict=True):
        np.testing.assert_allclose(advantages[advantages != 0], values[values != 0], rtol=1e-5)


@pytest.mark.parametrize("form", ["mean", "mean_std", "leave_one_out"])
async def test_advantages(tmp_path: Path, form: str) -> None:
    run, (body, _) = await trained(tmp_path, "train.steps=1", f"train.advantage={form}")
    assert any(len({one["reward"] for one in group}) > 1 for group in members(run).values())
    check(body, expected(run, form, "token_mean"))


@pytest.mark.parametrize("weighting", ["token_mean", "sequence_mean", "constant"])
async def test_weightings(tmp_path: Path, weighting: str) -> None:
    run, (body, _) = await trained(tmp_path, "train.steps=1", f"train.weighting={weighting}")
    assert len({len(one["logprobs"]) for group in members(run).values() for one in group}) > 1
    check(body, expected(run, "mean_std", weighting))


async def test_a_server_that_averages_is_sent_advantages_that_make_up_for_it(
    tmp_path: Path,
) -> None:
    options = ("train.steps=1", "server.loss_reduction=datum_mean")
    run, (body, _) = await trained(tmp_path, *options)
    wanted = expected(run, "mean_std", "token_mean")
    data = inputs(body)
    scaled = [
        len(data) * len(one["target_tokens"]["data"]) * values
        for one, values in zip(data, wanted, strict=True)
    ]
    check(body, scaled)


@pytest.mark.parametrize(
    ("loss", "given", "config"),
    [
        ("importance_sampling", "{}", None),
        ("ppo", "{}", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        (
            "ppo", "{clip_high_threshold: 1.28}",
            {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28},
        ),
        (
            "cispo", "{clip_low_threshold: 0, clip_high_threshold: 5}",
            {"clip_low_threshold": 0, "clip_high_threshold": 5},
        ),
    ],
)  # fmt: skip
async def test_losses(tmp_path: Path, loss: str, given: str, config: Any) -> None:
    options = ("train.steps=1", f"train.loss={loss}", f"train.loss_config={given}")
    run, (body, _) = await trained(tmp_path, *options)
    assert body["forward_backward_input"]["loss_fn"] == loss
    assert body["forward_backward_input"]["loss_fn_config"] == config
    assert ("audit/clipped" in lines(run, "metrics.jsonl")[0]) == (loss != "importance_sampling")


async def test_rewards_are_normalised_first_and_the_kl_comes_after(tmp_path: Path) -> None:
    """The second step: the first one's policy is the reference itself."""
    options = ("train.steps=2", "train.kl=0.25")
    run, calls = await trained(tmp_path, *options, prompt_logprobs=halves)
    body = [call for call in calls if "forward_backward_input" in call][-1]
    groups = members(run, 2)
    counts = sum(len(one["logprobs"]) for group in groups.values() for one in group)
    wanted = []
    for group in groups.values():
        values = advantage("mean_std", np.array([one["reward"] for one in group]))
        for one, value in zip(group, values, strict=True):
            wanted.append((value - 0.25 * (np.array(one["logprobs"]) + 0.5)) / counts)
    check(body, wanted)


async def test_a_penalty_of_zero_trains_and_publishes_nothing(tmp_path: Path) -> None:
    """Equal rewards under the initial policy: there is nothing to learn, and no KL to pay."""
    run, calls = await trained(
        tmp_path, "train.steps=3", "train.kl=0.5",
        sampler=lambda tokens, seed: ([END], [-0.1]),
        # Computed a second time a logprob is off by rounding, which is nothing to train on.
        prompt_logprobs=lambda tokens, policy: [None] + [-0.1000003] * (len(tokens) - 1),
    )  # fmt: skip
    assert calls == []
    commits = lines(run, "commits.jsonl")
    assert [commit["step"] for commit in commits] == [0, 1, 2, 3]
    assert len({commit["policy"] for commit in commits}) == 1
    consumed = [sorted(map(int, commit["groups"])) for commit in commits[1:]]
    assert consumed == np.arange(3 * PER_STEP).reshape(3, PER_STEP).tolist()


async def test_constant_rewards_keep_their_kl_term_unless_they_are_skipped(tmp_path: Path) -> None:
    """The second step of a run whose first one was trained."""

    class Once:
        """Plays for something in the first step, and for nothing after it."""

        def __init__(self) -> None:
            self.stepped = False

        def trainer(self, data: Any) -> Any:
            self.stepped = True
            return [datum["loss_fn_inputs"]["logprobs"]["data"] for datum in data]

        def __call__(self, tokens: Any, seed: int) -> tuple[list[int], list[float]]:
            ids = [END] if self.stepped else call("hit" if seed % 3 else "stand")
            return ids, [-0.1] * len(ids)

    for name, skip, backward in (("kept", "[]", 2), ("skipped", "[constant_reward]", 1)):
        player = Once()
        options = ("train.steps=2", "train.kl=0.5", f"train.skip={skip}")
        run, calls = await trained(
            tmp_path / name, *options,
            sampler=player, trainer=player.trainer, prompt_logprobs=halves,
        )  # fmt: skip
        bodies = [call for call in calls if "forward_backward_input" in call]
        assert len(bodies) == backward
        assert lines(run, "commits.jsonl")[-1]["groups"] == {
            str(group): "constant_reward" for group in range(PER_STEP, 2 * PER_STEP)
        }
        if backward == 2:  # one sampled token a trajectory; logprob -0.1, reference -0.5
            for advantages in sent(bodies[1]):
                assert advantages[advantages != 0] == pytest.approx([-0.5 * 0.4 / (4 * PER_STEP)])


async def test_learning_rates_clipping_and_adam_on_the_wire(tmp_path: Path) -> None:
    options = (
        "train.steps=6", "train.learning_rate=0.01", "train.warmup_steps=2", "train.kl=0.5",
        "train.grad_clip_norm=0.3", "train.beta1=0.8", "train.beta2=0.9", "train.eps=1e-6",
        "train.weight_decay=0.05",
    )  # fmt: skip
    after = np.arange(4) / 4
    falls = {
        "constant": np.ones(4),
        "linear": 1 - after,
        "cosine": np.array([(1 + math.cos(math.pi * share)) / 2 for share in after]),
    }
    for schedule, shares in falls.items():
        _, calls = await trained(tmp_path / schedule, *options, f"train.schedule={schedule}")
        steps = [call["adam_params"] for call in calls if "adam_params" in call]
        rates = [step.pop("learning_rate") for step in steps]
        assert rates == pytest.approx([0.005, 0.01, *(0.01 * shares)])
        assert all(
            step == {
                "beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.05,
                "grad_clip_norm": 0.3,
            }
            for step in steps
        )  # fmt: skip


@pytest.mark.parametrize("rule", ["train.skip=[model_truncated]", "group.on_truncated=skip_group"])
async def test_a_truncated_member_skips_its_group_however_it_is_written(
    tmp_path: Path, rule: str
) -> None:
    def sampler(tokens: Any, seed: int) -> tuple[list[int], list[float]]:
        ids = call("hit" if seed % 3 else "stand")
        ids = ids if seed % 5 else [*ids[:3], *ids[:3]] * 20  # some speak until they are cut off
        return ids, [-0.1] * len(ids)

    options = ("train.steps=2", "budget.turn_tokens=60", rule)
    run, calls = await trained(tmp_path, *options, sampler=sampler)
    skipped = run.skipped["model_truncated"]
    assert 0 < skipped < 12
    cut = {
        group
        for step in (1, 2)
        for group, records in members(run, step).items()
        if any(record["stop"] == "turn_tokens" for record in records)
    }
    outcomes = {
        int(group): outcome
        for commit in lines(run, "commits.jsonl")
        for group, outcome in commit["groups"].items()
    }
    assert {group for group, why in outcomes.items() if why == "model_truncated"} == cut
    trained_episodes = sum(len(inputs(call)) for call in calls if "adam_params" not in call)
    assert trained_episodes == 4 * sum(why == "trained" for why in outcomes.values())
