"""What a screen knows of a run before it begins."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

FEW_GROUPS = 8
"""Groups of a step, up to which each one is told when it has ended."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in a sweep."""

    number: int
    runs: int
    alike: bool = False
    """They do the same work, and so take about as long."""
    took: Sequence[float] = ()
    """Seconds of the runs before it that have come to their end."""

    def rest(self, own: float, left: float) -> float | None:
        """Seconds until the end of the sweep, where this run takes ``own`` seconds of which
        ``left`` are left; None where the others may take longer or shorter."""
        if not self.alike:
            return None
        mean = sum(self.took) / len(self.took) if self.took else own
        return left + (self.runs - self.number) * mean


@dataclass(frozen=True)
class DisplayPlan:
    """What is known before a run begins."""

    title: str
    games: int = 0
    games_during: int = 0
    evaluate_every: int = 0
    """Steps between evaluations during training; 0 where there are none."""
    concurrency: int = 0
    drain_timeout: float = 60.0
    keep_groups: bool = False
    """Keep finished groups for a table at the end (``mtrl rollout``)."""
    readable: bool = False
    """How to read one of its trajectories is told at the end."""
    total_groups: int | None = None
    """Groups that will be played, where that is all that happens (``mtrl rollout``)."""
    policies: int = 0
    """Policies that play the games, where that is all that happens (``mtrl eval``)."""
    watched: bool = False
    """Another process carries the run out (``mtrl watch``)."""
    groups_per_step: int = 0
    """Groups that a training step consumes; 0 where there are no steps."""
    figures: Sequence[str] = ()
    """Figures that the steps of some runs have: ``kl``, ``parity``."""
    place: Place | None = None
    """Of a run of a sweep."""

    def due(self, step: int, steps: int, begun: Container[str]) -> Iterator[int]:
        """The games of each evaluation that is to come: of a training that has finished ``step``
        of ``steps`` steps, where those labelled ``begun`` are behind it or go on."""
        if every := self.evaluate_every:
            first = step if f"step {step}" not in begun else step + 1
            yield from (self.games_during for n in range(first, steps) if n % every == 0)
        if self.games and "after" not in begun:
            yield self.games

    def groups(self, steps: int) -> int:
        """All groups of a run of so many steps; 0 where that is not known."""
        return self.total_groups or steps * self.groups_per_step

    @property
    def tells_groups(self) -> bool:
        """Whether a group that has ended is worth a line of its own. Where a step has many groups,
        the step's line stands for them, and counts those that failed by the reason."""
        return self.groups_per_step <= FEW_GROUPS
