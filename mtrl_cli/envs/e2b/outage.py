"""Whether the service is gone: creations that failed in a row, whoever asked for them.

One creation is tried a few times and its episode is played again; none of that may add up to
minutes in which nothing happens. A creation that succeeds, and a service that says that it limits
us, end the row; a failure that is learnt of later begins a new one at that answer, however long ago
its creation was sent.
"""

_LEAST = 3
"""Failures in a row before time counts: one slow creation is no outage."""


class Outage:
    """One account's. ``seconds``: how long a row may last, from its first sending."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._answered = float("-inf")
        self._since: float | None = None
        self.failures = 0

    def over(self, now: float) -> None:
        """The service has answered."""
        self._answered, self._since, self.failures = now, None, 0

    def failed(self, sent: float, now: float) -> bool:
        """Count a creation that was sent at ``sent``; whether the service is taken for gone."""
        self.failures += 1
        begun = max(sent, self._answered)
        self._since = begun if self._since is None else min(self._since, begun)
        return self.failures >= _LEAST and now - self._since >= self.seconds
