"""Whether an environment honours its seed, found out before anything is played.

A GRPO group compares episodes that begin alike. An environment that ignores the seed it is given
deals every member another start, and nothing fails: it only learns badly.
"""

from mtrl_cli.errors import MtrlError
from mtrl_cli.foreign import line
from mtrl_cli.rollout.held import borrow_environment
from mtrl_cli.rollout.ports import EnvironmentFactory, RolloutError, Task
from mtrl_cli.rollout.resources import RolloutResources
from mtrl_cli.rollout.task_fault import task_sample

_SEED = 20_240_229
"""Of the two episodes; any will do."""


async def seed_notice(envs: EnvironmentFactory, task: Task, resources: RolloutResources) -> str:
    """Begin two episodes of the same task sample, each in an instance of its own, as a group does.

    Returns:
        One line for a person, or nothing when both begin alike.

    Raises:
        MtrlError: no episode could be played at all, as the game cannot be loaded for example.
    """
    seen = []
    try:
        sample = task_sample(task, _SEED)
        for _ in range(2):
            async with resources.scope("check") as scope:
                environment = await borrow_environment(scope, envs)
                seen.append(await environment.reset(sample, 0))
    except RolloutError as error:
        if isinstance(error, MtrlError):
            raise
        return f"whether the environment honours its seed could not be checked: {line(error)}"
    if seen[0] == seen[1]:
        return ""
    return (
        "the environment ignores its seed: two episodes of the same seed began differently, so"
        " the members of a group do not share a start; compare means over many groups only"
    )
