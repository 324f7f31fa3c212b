"""Reference logprobs: the initial policy's logprobs of the tokens that were sampled.

They come from the server (`TrainingService.logprobs` on the initial policy's URI), one call a
trajectory, many at once. Only those of sampled tokens are kept.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.tokens import TokenSequence
from mtrl_cli.rollout.trajectory import Trajectory
from mtrl_cli.servers.interface import TrainingService
from mtrl_cli.training.batch import sampled_positions
from mtrl_cli.training.operations import TrainingError


async def reference_logprobs(
    service: TrainingService, policy: str, trajectories: Sequence[Trajectory]
) -> list[NDArray[np.float32]]:
    """Per trajectory, float32 [number of sampled tokens].

    Raises:
        TrainingError: the server returned a logprob that is not finite.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(_of_one(service, policy, trajectory.tokens))
            for trajectory in trajectories
        ]
    return [task.result() for task in running]


async def _of_one(
    service: TrainingService, policy: str, tokens: TokenSequence
) -> NDArray[np.float32]:
    logprobs = await service.logprobs(policy, tokens.ids)
    values = logprobs[sampled_positions(tokens) + 1]
    if not np.isfinite(values).all():
        raise TrainingError(f"a reference logprob under {policy} is not finite")
    return values
