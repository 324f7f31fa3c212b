"""How long the parts of a training take, and so how much longer it will.

A step that is to come takes as long as those before it did in the mean, in which the latest ones
count most, as a machine or a server may be busier for a while; an evaluation takes as long as the
latest one of as many games. What goes on is counted by what has passed of it: of a step by
time, of an evaluation by its games as soon as they end. Nothing is guessed: where an evaluation is
due and none was measured, the estimate says that it leaves one out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

KEPT = 0.85
"""What a step's duration counts beside that of the next one. Over 23 real runs of 60 to 400 steps
the estimate was wrong by 36 % of what was left in the mean, by that of the last 20 steps alone by
38 %; in a run whose machine was busy at first by 35 %, by the other by 43 %."""


WAVE = 1.5
"""Games that end before so many times what the first one took are of the first wave."""


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until the end of a run."""

    seconds: float
    unmeasured: bool = False
    """Evaluations come on top, whose length is not known yet."""


@dataclass(slots=True)
class Pace:
    """Durations in seconds, all of one clock."""

    _seconds: float = 0.0
    """Of all steps, each counted `KEPT` times as much as the next one."""
    _weight: float = 0.0
    """Of as many steps, counted in the same way."""
    _evaluations: dict[int, float] = field(default_factory=dict)
    """Games of an evaluation, and how long the latest one took; the latest one stands last."""
    _began: float = 0.0
    """Of the evaluation in progress."""
    _games: int = 0
    """Its games that have ended."""
    _first: float = 0.0
    _latest: float = 0.0
    _wave: tuple[int, float] = (0, 0.0)
    """How many of them were the first wave's, and when that was over."""

    def stepped(self, seconds: float) -> None:
        """A step took ``seconds``."""
        self._seconds = KEPT * self._seconds + seconds
        self._weight = KEPT * self._weight + 1

    def evaluates(self, now: float) -> None:
        """An evaluation begins."""
        self._began, self._games = now, 0

    def game_ended(self, now: float) -> None:
        """A game of it has ended."""
        self._games += 1
        self._latest = now
        if self._games == 1:
            self._first = now
        if now - self._began <= WAVE * (self._first - self._began):
            self._wave = self._games, now

    def evaluated(self, games: int, now: float) -> None:
        """An evaluation of ``games`` games is over."""
        self._evaluations.pop(games, None)
        self._evaluations[games] = now - self._began

    def steps(self, left: int, passed: float) -> float | None:
        """Seconds of ``left`` more steps, the first of which has begun ``passed`` seconds ago;
        None before one was measured."""
        mean = self._seconds / self._weight if self._weight else None
        return _at(mean, left, passed)

    def evaluations(self, due: Iterable[int]) -> float | None:
        """Seconds of evaluations of so many games each; None where none was measured."""
        every = [self._evaluation(games) for games in due]
        known = [seconds for seconds in every if seconds is not None]
        return sum(known) if len(known) == len(every) else None

    def rest(self, games: int, now: float) -> float | None:
        """Seconds until the end of an evaluation of ``games`` games, which is in progress."""
        own, before = self._by_games(games, now), self._evaluation(games)
        expected = None if before is None else max(before - (now - self._began), 0.0)
        if own is None or expected is None:
            return expected if own is None else own
        share = min(self._games / games, 1.0)
        return (1 - share) * expected + share * own

    def _by_games(self, games: int, now: float) -> float | None:
        """The same by the rate at which its games end. The first wave, which all begins at once,
        tells nothing of that rate; None before as many games again have ended."""
        first, over = self._wave
        more = self._games - first
        mean = (self._latest - over) / more if 0 < first <= more else None
        return _at(mean, max(games - self._games, 0), now - self._latest)

    def _evaluation(self, games: int) -> float | None:
        if games in self._evaluations:
            return self._evaluations[games]
        if not self._evaluations:
            return None
        measured, seconds = list(self._evaluations.items())[-1]
        return seconds * games / measured


def _at(mean: float | None, left: int, passed: float) -> float | None:
    """Seconds of ``left`` things that take ``mean`` seconds each, ``passed`` seconds after the
    first of them began. One that takes longer is as good as over, and not more."""
    if not left:
        return 0.0
    return None if mean is None else left * mean - min(passed, mean)
