"""How much each token counts in a step's loss: the weight that its advantage is multiplied with.

A step's loss is the sum over trajectories i and their sampled tokens t of w_i · loss(i, t). With
n_i the sampled tokens of trajectory i, M the trajectories that have any:

- ``token_mean``: w_i = 1 / Σ n_j. Every token counts alike, a long trajectory more (DAPO's
  token-level loss, arXiv:2503.14476, section 3.3).
- ``sequence_mean``: w_i = 1 / (M · n_i). Every trajectory counts alike, a token of a long one
  less (GRPO, arXiv:2402.03300, equation 3).
- ``constant``: w_i = 1 / (M · L) with a fixed length L. As ``token_mean``, but the step's own
  lengths do not change the scale (Dr. GRPO, arXiv:2503.20783, section 3.2).

Σ and M run over all trainable trajectories of the step, also over those without a signal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WeightingForm = Literal["token_mean", "sequence_mean", "constant"]


@dataclass(frozen=True, slots=True)
class Weighting:
    form: WeightingForm = "token_mean"
    length: int = 1
    """L, in tokens; for ``constant`` only."""


TOKEN_MEAN = Weighting()


def token_weights(sampled: Sequence[int], weighting: Weighting) -> list[float]:
    """Per trajectory the weight of each of its tokens, from the numbers of sampled tokens.

    A trajectory without a token has weight 0.
    """
    tokens, trajectories = sum(sampled), sum(count > 0 for count in sampled)

    def weight(count: int) -> float:
        match weighting.form:
            case "token_mean":
                return 1 / tokens
            case "sequence_mean":
                return 1 / (trajectories * count)
            case "constant":
                return 1 / (trajectories * weighting.length)

    return [weight(count) if count else 0.0 for count in sampled]
