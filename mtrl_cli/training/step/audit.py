"""The audit: are the sampler's logprobs those of the policy that is trained?

Each audited step holds the logprobs that came with the samples against the trainer's of the same
tokens, which every forward/backward call returns, before the optimizer step is sent. On groups
sampled under the policy that is trained, the two are one number computed twice: a difference
beyond rounding means that something else is trained than was sampled.

Groups of an older policy (``train.max_policy_lag``) differ from the trainer rightly. In a step that
has no others the server is asked for the logprobs of a few trajectories, twice: under the policy
that sampled them, which must be what came with the samples, and under the newest, which must be
the trainer's.

The first step of a resumed attempt also asks for the logprobs of a few of its samples under the
policy that was committed, by its old name: a state that was loaded must be that policy, and no
comparison within the new attempt can tell.

A difference above a warning threshold is told once; one above a stop threshold raises
`AuditError`, and the step is not taken. So do logprobs of exactly 0 for tokens that are far from
certain, which a mean over certain tokens can hide.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.errors import MtrlError
from mtrl_cli.rollout.events import Observer
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.settle import original
from mtrl_cli.rollout.trajectory import Trajectory
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import LossSpec, TrainingService
from mtrl_cli.training.events import Notice
from mtrl_cli.training.step.batch import Batch, sampled_positions
from mtrl_cli.training.step.parity import Pair, likely_cause, parity_figures, ratio_figures
from mtrl_cli.training.step.reference import policy_logprobs

REPLAYED = 8
"""Trajectories that the server is asked about in a step without a group of the newest policy."""


ZEROS = 0.01
"""The share of zeros from which on they stop the run, where anything does."""


class AuditError(MtrlError):
    """Sampler and trainer disagree by more than the run allows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Absolute differences of logprobs, in nats; a threshold of 0 is off."""

    warn_max: float
    warn_mean: float
    stop_max: float
    stop_mean: float
    limit: float
    """What ``audit/above`` counts."""

    def stops(self, figures: Mapping[str, float]) -> bool:
        """Whether a step of these `parity_figures` is not taken."""
        zeros = bool(self.stop_max or self.stop_mean) and figures["audit/zeros"] > ZEROS
        return zeros or _above(figures, self.stop_max, self.stop_mean)

    def warns(self, figures: Mapping[str, float]) -> bool:
        return _above(figures, self.warn_max, self.warn_mean)


FLOAT32 = Limits(warn_max=1e-4, warn_mean=1e-5, stop_max=1e-3, stop_mean=1e-4, limit=1e-4)
"""Both sides compute in float32; the embedded server's differ by 2e-6 to 1e-5."""

BFLOAT16 = Limits(warn_max=0.0, warn_mean=0.05, stop_max=0.0, stop_mean=0.1, limit=0.1)
"""Two implementations in low precision: single tokens may differ by more than 1, so only the mean
tells; docs/audit.md has what others measured."""


@dataclass(frozen=True, slots=True)
class AuditRules:
    every: int
    """Trained steps from one audit to the next; the first is always audited."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class Replay:
    """What the server computed again of the trajectories at ``places`` of a batch, each
    float32 [sampled]: under the policy that sampled it, and under the one in training."""

    places: Sequence[int]
    own: Sequence[NDArray[np.float32]]
    newest: Sequence[NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Committed:
    """What the server computed of the trajectories at ``places`` of a batch under the policy that
    the attempt goes on from, by the name that it was committed under."""

    places: Sequence[int]
    logprobs: Sequence[NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """``differ`` says of the pairs what is wrong where they differ."""

    differ: str
    pairs: Sequence[Pair]

    @property
    def mean(self) -> float:
        return parity_figures(self.pairs, 1.0)["parity_mean"]


class Audit:
    """The audits of one attempt of a run.

    Args:
        rules: when, and what is allowed.
        loss: whose clipping is counted.
        service: asked for an older policy's logprobs.
        observer: hears the warning.
        committed: URI of the policy that the attempt goes on from, as an earlier attempt
            committed it; None in a first attempt.
    """

    def __init__(
        self,
        rules: AuditRules,
        loss: LossSpec,
        service: TrainingService,
        observer: Observer,
        committed: str | None = None,
    ) -> None:
        self._rules = rules
        self._loss = loss
        self._service = service
        self._observer = observer
        self._committed = committed
        self._steps = 0
        self._told: set[str] = set()

    @property
    def due(self) -> bool:
        """Whether the next step is audited."""
        every = self._rules.every
        return self._steps == 0 or (every > 0 and self._steps % every == 0)

    async def replay(self, policy: PolicySnapshot, batch: Batch) -> Replay | Committed | None:
        """Ask the server about a few trajectories, where no other comparison is to be had.

        None where the step has groups of the policy in training, but in the first step of a
        resume, or the server cannot say. To be run beside forward/backward: it takes as long as
        a sample.
        """
        able = self._service.capabilities
        if not self.due or not able.policy_logprobs or able.snapshots != "immutable":
            return None
        count = min(REPLAYED, len(batch.data))
        places = [round(place) for place in np.linspace(0, len(batch.data) - 1, count)]
        chosen = [batch.trajectories[place] for place in places]
        if any(_fresh(trajectory, policy) for trajectory in batch.trajectories):
            return await self._under_committed(places, chosen)
        by_policy: dict[str, list[int]] = {}
        for place, trajectory in zip(places, chosen, strict=True):
            by_policy.setdefault(trajectory.admission.group.policy, []).append(place)
        async with asyncio.TaskGroup() as tasks:
            newest = tasks.create_task(policy_logprobs(self._service, policy.uri, chosen))
            asked = {
                uri: tasks.create_task(
                    policy_logprobs(self._service, uri, [batch.trajectories[p] for p in mine])
                )
                for uri, mine in by_policy.items()
            }
        own = {
            place: values
            for uri, mine in by_policy.items()
            for place, values in zip(mine, asked[uri].result(), strict=True)
        }
        return Replay(places, [own[place] for place in places], newest.result())

    async def _under_committed(
        self, places: Sequence[int], chosen: Sequence[Trajectory]
    ) -> Committed | None:
        """Only in the first step of a resume: all its samples are of the policy loaded."""
        if self._committed is None or self._steps > 0:
            return None
        try:
            logprobs = await policy_logprobs(self._service, self._committed, chosen)
        except BaseExceptionGroup as group:
            if not isinstance(error := original(group), ServerError):
                raise
            why = " ".join(str(error).split())
            self._tell("committed", f"audit: {_LOADED_UNCHECKED}: {why}")
            return None
        return Committed(places, logprobs)

    async def check(
        self,
        step: int,
        policy: PolicySnapshot,
        batch: Batch,
        logprobs: Sequence[NDArray[np.float32]],
        replay: Replay | Committed | None = None,
    ) -> Mapping[str, float]:
        """The figures of a step that is about to be taken; none where it is not audited.

        Args:
            step: its number, for messages.
            policy: the one in training.
            batch: what was sent.
            logprobs: the trainer's, per datum [T].
            replay: see `replay`.

        Raises:
            AuditError: a stop threshold is crossed, or a trainer's logprob is not finite.
        """
        due, self._steps = self.due, self._steps + 1
        if not due:
            return {}
        pairs = _pairs(batch, logprobs)
        if not all(np.isfinite(pair.again).all() for pair in pairs):
            raise AuditError(
                f"audit, step {step}: a logprob of the trainer is not finite. {_ENDED}"
            )
        advantages = [
            datum.advantages[pair.positions] for datum, pair in zip(batch.data, pairs, strict=True)
        ]
        # On a thread: it sorts every token of the step, and sampling goes on.
        figures = await asyncio.to_thread(ratio_figures, pairs, advantages, self._loss)
        compared = _comparisons(policy, batch, pairs, replay)
        if not compared:
            self._tell("lag", _NOTHING_TO_COMPARE)
            return figures
        every = [pair for comparison in compared for pair in comparison.pairs]
        figures |= parity_figures(every, self._rules.limits.limit)
        self._judge(step, figures, max(compared, key=lambda one: one.mean))
        return figures

    def _judge(self, step: int, figures: Mapping[str, float], worst: _Comparison) -> None:
        limits = self._rules.limits
        head = f"audit, step {step}: {worst.differ}: "
        if limits.stops(figures):
            text = _told(figures, limits.stop_max, limits.stop_mean, "stop", limits.limit)
            cause = likely_cause(worst.pairs) or _USUAL
            raise AuditError(f"{head}{text}. {cause[0].upper()}{cause[1:]}. {_ENDED}")
        if limits.warns(figures):
            text = _told(figures, limits.warn_max, limits.warn_mean, "warn", limits.limit)
            self._tell("warn", f"{head}{text}; told once, metrics.jsonl has every step")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._observer(Notice(text))


def _comparisons(
    policy: PolicySnapshot,
    batch: Batch,
    pairs: Sequence[Pair],
    replay: Replay | Committed | None,
) -> list[_Comparison]:
    """What must be equal; ``pairs`` holds the sampler's logprobs and the trainer's."""
    fresh = [
        pair
        for pair, trajectory in zip(pairs, batch.trajectories, strict=True)
        if _fresh(trajectory, policy)
    ]
    compared = [_Comparison("the sampler's logprobs are not the trainer's", fresh)] if fresh else []
    if replay is None:
        return compared
    chosen = [pairs[place] for place in replay.places]
    if isinstance(replay, Committed):
        resumed = [
            Pair(pair.positions, pair.sampled, again.astype(np.float64))
            for pair, again in zip(chosen, replay.logprobs, strict=True)
        ]
        return [
            *compared,
            _Comparison("the state that was loaded is not the policy that was committed", resumed),
        ]
    return [
        _Comparison(
            "logprobs that came with the samples are not those of the policy that they name",
            [
                Pair(pair.positions, pair.sampled, again.astype(np.float64))
                for pair, again in zip(chosen, replay.own, strict=True)
            ],
        ),
        _Comparison(
            "the sampler's logprobs under the newest policy are not the trainer's",
            [
                Pair(pair.positions, again.astype(np.float64), pair.again)
                for pair, again in zip(chosen, replay.newest, strict=True)
            ],
        ),
    ]


_LOADED_UNCHECKED = "whether the loaded state is the policy that was committed was not checked"
_NOTHING_TO_COMPARE = (
    "audit: this server keeps no older policy to compare with, and with train.max_policy_lag a "
    "step may have no group of the newest; only the importance ratio is reported then"
)
_USUAL = (
    "It usually means that the samples come from other weights than the policy's, that they were "
    "drawn or scored under another temperature or template, or that logprobs are shifted, missing "
    "or of another precision"
)
_ENDED = "No optimizer step was sent for it; what is committed stands"


def _above(figures: Mapping[str, float], most: float, mean: float) -> bool:
    return bool((most and figures["parity_max"] > most) or (mean and figures["parity_mean"] > mean))


def _told(figures: Mapping[str, float], most: float, mean: float, verb: str, limit: float) -> str:
    def allowed(threshold: float) -> str:
        return f" ({verb} above {threshold:g})" if threshold else ""

    return (
        f"they differ by {figures['parity_max']:.3g} at most{allowed(most)} and by "
        f"{figures['parity_mean']:.3g} in the mean{allowed(mean)} over "
        f"{figures['audit/tokens']:,.0f} tokens, {figures['audit/above']:.0%} of them by more than "
        f"{limit:g}; KL {figures['audit/kl_k3']:.3g} (k3), importance ratio "
        f"{figures['audit/ratio_p1']:.3g} (p1) to {figures['audit/ratio_p99']:.3g} (p99), at most "
        f"{figures['audit/ratio_max']:.3g}"
    )


def _fresh(trajectory: Trajectory, policy: PolicySnapshot) -> bool:
    """Sampled under the weights that are trained now."""
    return trajectory.admission.group.policy_step == policy.step


def _pairs(batch: Batch, logprobs: Sequence[NDArray[np.float32]]) -> list[Pair]:
    """Per datum the sampler's logprobs and the trainer's."""
    made = []
    for trajectory, row in zip(batch.trajectories, logprobs, strict=True):
        positions = sampled_positions(trajectory.tokens)
        sampled = np.array(trajectory.tokens.sampled_logprobs, dtype=np.float64)
        made.append(Pair(positions, sampled, row[positions].astype(np.float64)))
    return made
