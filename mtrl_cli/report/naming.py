"""What the runs of one report are called, and which of them differ in nothing but the seed.

``seed=1`` and ``seed=2`` say more than two run ids. Where the settings do not tell the runs apart,
or would take too many words, it is the id. Runs that differ in the seed alone are one *setting*:
``group.size=8`` for all seeds of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mtrl_cli.report.facts import RunFacts

MOST_KEYS = 3
_LONGEST = 48
_SEED = "seed"


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs that differ in nothing but the seed; at least one."""

    name: str
    """What tells it from the other settings; empty where there is no other."""
    runs: tuple[RunFacts, ...]
    named: tuple[str, ...]
    """The names of the runs."""

    @property
    def count(self) -> str:
        """``3 seeds``; ``3 runs`` where a seed was run twice; ``1 run``."""
        seeds = {run.settings.get(_SEED) for run in self.runs}
        if len(self.runs) == 1:
            return "1 run"
        return f"{len(self.runs)} {'seeds' if len(seeds) == len(self.runs) else 'runs'}"


def settings(runs: Sequence[RunFacts]) -> list[Setting]:
    """The runs by what they were set to, apart from the seed, in the order of the first of each.

    A run whose configuration cannot be read stands alone.
    """
    groups: dict[object, list[int]] = {}
    for index, run in enumerate(runs):
        rest = tuple((key, value) for key, value in run.settings.items() if key != _SEED)
        groups.setdefault(rest or run.id, []).append(index)
    named = names(runs)
    firsts = [runs[members[0]] for members in groups.values()]
    called = _called(firsts, [key for key in differing(firsts) if key != _SEED])
    if len(groups) == len(runs):
        called = named
    elif len(groups) == 1:
        called = [""]
    return [
        Setting(name, tuple(runs[i] for i in members), tuple(named[i] for i in members))
        for name, members in zip(called, groups.values(), strict=True)
    ]


def names(runs: Sequence[RunFacts]) -> list[str]:
    """One name for each run, all different."""
    return _called(runs, differing(runs))


def told_apart(policies: Sequence[str]) -> dict[str, str]:
    """A name for each policy, given as its URI: the last part of it, or as many as tell it from
    the others."""
    parts = [policy.rstrip("/").split("/") for policy in dict.fromkeys(policies)]
    for last in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(each[-last:]) for each in parts]
        if len(set(names)) == len(parts):
            return dict(zip(dict.fromkeys(policies), names, strict=True))
    return {policy: policy for policy in policies}


def _called(runs: Sequence[RunFacts], keys: Sequence[str]) -> list[str]:
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
