"""Logprobs of sampled tokens under a given policy, such as the KL penalty's initial one.

They come from the server (`TrainingService.logprobs` on the policy's URI), many at once. They
depend on the tokens alone, so equal token sequences, which the members of a group often are, are
asked for once. Only the logprobs of sampled tokens are kept.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import Trajectory
from mtrl_cli.runs.trajectories import References
from mtrl_cli.servers.interface import TrainingService
from mtrl_cli.training.operations import TrainingError
from mtrl_cli.training.step.batch import KlPenalty, sampled_positions
from mtrl_cli.training.step.groups import TrainingBatch


async def reference_logprobs(
    service: TrainingService, initial: PolicySnapshot, trajectories: Sequence[Trajectory]
) -> list[NDArray[np.float32]]:
    """The initial policy's logprobs: per trajectory, float32 [number of sampled tokens].

    What the initial policy itself has sampled keeps the sampler's: asked for again they would
    differ by rounding, and a KL term that is 0 would be trained on.

    Raises:
        TrainingError: the server returned a logprob that is not finite.
    """
    later = [t for t in trajectories if t.admission.group.policy_step != initial.step]
    found = iter(await policy_logprobs(service, initial.uri, later))
    return [
        np.array(trajectory.tokens.sampled_logprobs, dtype=np.float32)
        if trajectory.admission.group.policy_step == initial.step
        else next(found)
        for trajectory in trajectories
    ]


def recorded_of(kept: TrainingBatch, penalty: KlPenalty | None) -> References:
    """What is written down of a step's reference logprobs; nothing without a penalty."""
    if penalty is None:
        return {}
    keys = ((t.admission.group.group, t.admission.member) for t in kept.trajectories)
    return {key: values.tolist() for key, values in zip(keys, penalty.reference, strict=True)}


async def policy_logprobs(
    service: TrainingService, policy: str, trajectories: Sequence[Trajectory]
) -> list[NDArray[np.float32]]:
    """Per trajectory, float32 [number of sampled tokens] under the policy with this URI.

    Raises:
        TrainingError: the server returned a logprob that is not finite.
    """
    sequences = [bytes(trajectory.tokens.ids) for trajectory in trajectories]
    distinct = {key: t.tokens for key, t in zip(sequences, trajectories, strict=True)}
    async with asyncio.TaskGroup() as tasks:
        running = {
            key: tasks.create_task(service.logprobs(policy, tokens.ids))
            for key, tokens in distinct.items()
        }
    return [
        _of_sampled(running[key].result(), trajectory.tokens, policy)
        for key, trajectory in zip(sequences, trajectories, strict=True)
    ]


def _of_sampled(
    logprobs: NDArray[np.float32], tokens: TokenSequence, policy: str
) -> NDArray[np.float32]:
    values = logprobs[sampled_positions(tokens) + 1]
    if not np.isfinite(values).all():
        raise TrainingError(f"a logprob under {policy} is not finite")
    return values
