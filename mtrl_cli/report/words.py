"""The sentences of a report: what is shown, and how it was computed."""

LEARNING = (
    "Each point is the mean return of a step's episodes (band: ± one standard error; from 20 steps"
    " on a mean of 10 steps over the single ones). Circles are evaluations, ± one standard error;"
    " dashed lines are known policies of the task."
)
GROUPS = "What became of every group that the steps consumed."
LEDGER = "Training calls and borrows by how they ended, all attempts together."
TRAJECTORIES = (
    "A sample: of a few steps the groups with the best, the worst and the most spread returns."
    " Underlined tokens were sampled (mask 1); the darker, the less likely. Advantages are computed"
    " again from the recorded returns, before token weights and without a KL term."
)

_OUTCOMES = {
    "constant_reward": (
        "equal rewards",
        "no advantage; the KL term stays, unless train.skip leaves the group out",
    ),
    "model_truncated": ("cut by a budget", "a member ran out of tokens"),
    "no_trained_token": ("nothing sampled", "no token that could be trained"),
    "env_failure": ("environment failed", ""),
    "policy_failure": ("server failed", "no turn could be sampled"),
    "timeout": ("too late", "the deadline of an episode passed"),
}


def outcome(reason: str) -> str:
    """What became of a group, in words."""
    return _OUTCOMES.get(reason, (reason.replace("_", " "), ""))[0]


def because(reason: str) -> str:
    """What that means, where it needs saying."""
    return _OUTCOMES.get(reason, ("", ""))[1]
