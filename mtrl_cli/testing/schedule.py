"""What one simulated schedule does, drawn from its seed: its size, its troubles, its disturbances.

See `simulation` for how it is played and what must hold.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.group import FailureRule
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.ports import SamplingParams
from mtrl_cli.testing.world import NumberTask

Disturbance = Literal[
    "cancel_consumer",
    "cancel_consumer_twice",
    "stop",
    "stop_cancel",
    "stop_twice",
    "stop_two_callers",
    "stop_waiter_cancelled",
    "close_admission",
    "quiesce",
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule. ``driver``: a training loop over `StreamingDriver`; otherwise a consumer of
    `ClientMultiTurnRollout` itself."""

    seed: int
    driver: bool
    per_step: int
    lag: int
    steps: int
    data: int | None
    """How many groups there are, None without end."""
    size: int
    concurrency: int
    rule: FailureRule
    budget: Budget
    patience: float
    trouble: float
    bugs: float
    harness: bool
    external: bool
    training: float
    """Seconds of training a step."""
    impatience: float | None
    """Seconds after which the consumer cancels its wait, and waits again."""
    quiesces: bool
    disturbances: tuple[tuple[float, Disturbance], ...]

    def admission(self, group: int, policy: PolicySnapshot) -> GroupAdmission | None:
        if self.data is not None and group >= self.data:
            return None
        return GroupAdmission(
            run="simulation",
            stream="train",
            run_seed=self.seed,
            group=group,
            size=self.size,
            task=NumberTask().sample(group),
            policy=policy.uri,
            policy_step=policy.step,
            sampling=SamplingParams(),
            budget=self.budget,
            harness={"group": group, "nested": [{"a": 1}]},
        )


def _disturbance(dice: Random) -> Disturbance:
    return dice.choice(get_args(Disturbance))


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    dice = Random(seed)
    per_step, steps = dice.randint(1, 3), dice.randint(1, 6)
    size = dice.randint(1, 4)
    budget = Budget(
        turn_tokens=8,
        trajectory_tokens=dice.choice((20, 100)),
        context=200,
        max_turns=dice.randint(1, 4),
        deadline=dice.uniform(3, 20),
    )
    rule = FailureRule(
        on_failure=dice.choice(("refill", "shrink", "drop")),
        max_refills=dice.randint(0, 2),
        floor=dice.randint(1, 3),
    )
    disturbances = tuple(
        sorted(
            (dice.choice((0.0, dice.uniform(0, 5), dice.uniform(0, 60))), _disturbance(dice))
            for _ in range(dice.choice((0, 0, 1, 1, 2, 3)))
        )
    )
    return Schedule(
        seed=seed,
        driver=dice.random() < 0.7,
        per_step=per_step,
        lag=dice.randint(0, 3),
        steps=steps,
        data=dice.choice((None, None, dice.randint(0, per_step * steps + 2))),
        size=size,
        concurrency=dice.choice((1, 2, 5, 100)),
        rule=rule,
        budget=budget,
        patience=dice.choice((0.5, 3.0)),
        trouble=dice.choice((0.0, 0.03, 0.1, 0.3)),
        bugs=dice.choice((0.0, 0.0, 0.0, 0.02)),
        harness=dice.random() < 0.5,
        external=dice.random() < 0.5,
        training=dice.choice((0.0, dice.uniform(0, 5))),
        impatience=dice.choice((None, dice.uniform(0.1, 2))),
        quiesces=dice.random() < 0.2,
        disturbances=disturbances,
    )
