"""Failed episodes, as they are told while a run goes on: the first of each kind, with its reason.

A kind is a reason without its numbers: a thousand lost connections are told once.
"""

import re
from collections.abc import Callable

from mtrl_cli.rollout.events import MemberFinished

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
        kind = _NUMBER.sub("#", event.failure)
        if kind in self._kinds or len(self._kinds) == KINDS:
            return
        self._kinds.add(kind)
        where = "; its traceback is in log.txt" if event.trace is not None else ""
        self._tell(f"an episode failed ({event.stop}) and has no reward: {event.failure}{where}")
