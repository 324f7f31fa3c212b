"""What the runs of one report are called: by the settings in which they differ.

``seed=1`` and ``seed=2`` say more than two run ids. Where the settings do not tell the runs apart,
or would take too many words, it is the id.
"""

from collections.abc import Sequence

from mtrl_cli.report.facts import RunFacts

MOST_KEYS = 3
_LONGEST = 48


def names(runs: Sequence[RunFacts]) -> list[str]:
    """One name for each run, all different."""
    keys = differing(runs)
    told = [", ".join(f"{key}={run.settings.get(key, '–')}" for key in keys) for run in runs]
    if not keys or len(keys) > MOST_KEYS or any(len(name) > _LONGEST for name in told):
        return [run.id for run in runs]
    return [
        name if told.count(name) == 1 else f"{name} ({run.id})"
        for name, run in zip(told, runs, strict=True)
    ]


def differing(runs: Sequence[RunFacts]) -> list[str]:
    """The keys that have not the same value in all runs."""
    keys = sorted({key for run in runs for key in run.settings})
    return [key for key in keys if len({run.settings.get(key) for run in runs}) > 1]
