"""The sentences of a report: what is shown, and how it was computed."""

LEARNING = (
    "Each point is the mean reward of a step's episodes (band: ± one standard error; from 20 steps"
    " on a mean of 10 steps over the single ones). Circles are evaluations, ± one standard error;"
    " dashed lines are known policies of the task."
)
GROUPS = "What became of every group that the steps consumed."
LEDGER = "Training calls and borrows by how they ended, all attempts together."
TRAJECTORIES = (
    "A sample: of a few steps the groups with the best, the worst and the most spread rewards."
    " Underlined tokens were sampled (mask 1); the darker, the less likely. Advantages are computed"
    " again from the recorded rewards, before token weights and without a KL term."
)
