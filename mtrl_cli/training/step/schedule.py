"""What changes over the steps: the learning rate and the KL coefficient."""

import math
from typing import Literal

ScheduleName = Literal["constant", "linear", "cosine"]


def learning_rate(peak: float, schedule: ScheduleName, warmup: int, step: int, steps: int) -> float:
    """The learning rate of ``step`` (0-based) of ``steps``.

    It rises linearly over ``warmup`` steps; then it stays, or falls to 0 at step ``steps``
    linearly or as half a cosine.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return peak * (1 - progress)
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * progress))
    return peak


def kl_coefficient(initial: float, end_step: int | None, step: int) -> float:
    """The KL coefficient of ``step``: constant, or falling linearly to 0 at ``end_step``."""
    if end_step is None:
        return initial
    return initial * max(0.0, 1 - step / end_step)
