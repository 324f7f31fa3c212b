"""Failed episodes, as they are told while a run goes on: the first of each kind, with its reason;
and that many of a batch have, as what has no reward is no part of what is learned or measured.

A kind is a reason without its numbers: a thousand lost connections are told once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

from mtrl_cli.rollout.events import MemberFinished
from mtrl_cli.rollout.group import Group

ENOUGH = 20
"""Episodes of a batch of which a share below half is told."""
SHARE = 0.1
"""Of these: from here on it is told how many have failed."""
KINDS = 8
"""Kinds that are told; who has more has seen enough of them."""

_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f]*")


class Failing:
    """``tell`` hears one line a kind."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._kinds: set[str] = set()

    def heard(self, event: MemberFinished) -> None:
        if event.failure is None:
            return
        kind = _kind(event.failure)
        if kind in self._kinds or len(self._kinds) == KINDS:
            return
        self._kinds.add(kind)
        where = "; its traceback is in log.txt" if event.trace is not None else ""
        self._tell(f"an episode failed ({event.stop}) and has no reward: {event.failure}{where}")


class Losses:
    """The episodes of a batch, those that were played again too, and why some of them failed."""

    def __init__(self, played: int = 0, reasons: Iterable[str] = ()) -> None:
        self.played = played
        self._kinds: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._add(reasons)

    def gathered(self, groups: Iterable[Group]) -> None:
        for group in groups:
            self.played += len(group.members) + len(group.failures)
            self._add(one.failure or one.stop.value for one in group.failures)

    def _add(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self._kinds[_kind(reason)] += 1
            self._first.setdefault(_kind(reason), reason)

    @property
    def most(self) -> bool:
        """Half of the episodes or more have failed."""
        return 0 < self.played <= 2 * self._kinds.total()

    @property
    def many(self) -> bool:
        """So many have failed that what remains is no fair sample."""
        return self.most or (self.played >= ENOUGH and self._kinds.total() >= SHARE * self.played)

    def told(self, batch: str) -> str | None:
        """One line about them, where many of ``batch`` failed; None where all did, as the run then
        ends with the reason."""
        failed = self._kinds.total()
        if not self.many or failed == self.played:
            return None
        kind, alike = self._kinds.most_common(1)[0]
        how = "" if failed == 1 else ", all alike" if alike == failed else ", none alike, such as"
        if 1 < alike < failed:
            how = f", {alike:,} of them alike"
        return f"{failed:,} of {self.played:,} episodes of {batch} failed{how}: {self._first[kind]}"


def _kind(reason: str) -> str:
    return _NUMBER.sub("#", reason)
