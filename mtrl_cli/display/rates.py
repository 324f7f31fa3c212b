"""How fast a run is: what happened over the last seconds."""

from collections import deque
from dataclasses import dataclass, field

RATE_WINDOW = 15
"""Seconds over which throughput is averaged."""

ENDED_KEPT = 4096
"""Ends of episodes that are kept to count a rate with."""


@dataclass(slots=True)
class Rates:
    """Counts tokens and episodes as they come, many thousands of times; a rate is computed when it
    is asked for. All times are of one monotonic clock."""

    began: float
    told: tuple[float, float] | None = None
    """Tokens a second and episodes a minute, where somebody else counts them."""
    _buckets: deque[list[int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))
    """A second, and the tokens sampled in it."""
    _ended: deque[float] = field(default_factory=lambda: deque(maxlen=ENDED_KEPT))

    def sampled(self, tokens: int, now: float) -> None:
        """A turn was sampled."""
        second, buckets = int(now), self._buckets
        if buckets and buckets[-1][0] == second:
            buckets[-1][1] += tokens
        else:
            buckets.append([second, tokens])

    def ended(self, now: float) -> None:
        """An episode has ended."""
        self._ended.append(now)

    def tokens_per_second(self, now: float) -> float:
        """Sampled tokens a second over the last seconds."""
        if self.told is not None:
            return self.told[0]
        oldest = int(now) - RATE_WINDOW
        recent = [bucket for bucket in self._buckets if bucket[0] > oldest]
        if not recent:
            return 0.0
        span = max(now - recent[0][0], 1.0)
        return sum(count for _, count in recent) / min(span, RATE_WINDOW)

    def episodes_per_minute(self, now: float) -> float:
        """Episodes that ended over the last minute, games of an evaluation too."""
        if self.told is not None:
            return self.told[1]
        ended, full = self._ended, len(self._ended) == ENDED_KEPT
        recent = sum(1 for when in ended if when > now - 60)
        if not recent:
            return 0.0
        # What is kept may begin later than a minute ago, and so may the run.
        span = min(60.0, now - ended[0] if full else now - self.began)
        return recent * 60 / max(span, 1.0)
