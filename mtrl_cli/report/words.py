"""The sentences of a report: what is shown, and how it was computed."""

BY_SETTING = (
    "Means over the runs of a setting ± one standard error over them (s/√n over n runs; none for a"
    " single one). It tells how much the runs differ; what the choice of games adds is in the table"
    " of runs. The gain of a run is the paired difference on the same games."
)
BY_RUN = "Rewards ± one standard error over the games of an evaluation; time is that of the steps."
GROUPS = "What became of every group that the steps consumed."
LEDGER = "Training calls and borrows by how they ended, all attempts together."
TRAJECTORIES = (
    "A sample: of a few steps the groups with the best, the worst and the most spread rewards."
    " Underlined tokens were sampled (mask 1); the darker, the less likely. Advantages are computed"
    " again from the recorded rewards, before token weights and without a KL term."
)
EPISODES = (
    "A sample: the groups with the best, the worst and the most spread rewards; of groups of one,"
    " some of all. Underlined tokens were sampled (mask 1); the darker, the less likely."
)
GAMES = (
    "A sample: {games}, from the worst to the best of all. Underlined tokens were sampled (mask 1);"
    " the darker, the less likely."
)
PAIRS = (
    "A sample: {games}, each as both policies played it, from those in which {one} did worst"
    " against {other} to those in which it did best; a game that one of them failed is not among"
    " them. Underlined tokens were sampled (mask 1); the darker, the less likely."
)
