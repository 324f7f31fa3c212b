"""Sessions: who holds what, kept alive by beats, ended by silence or by request.

A session owns models and sampling sessions. Every call that names it or something of it is a
beat. When it has not beaten for `ttl` seconds, or is finished, all it owns goes with it. What is
gone is remembered with its reason, so that a late call is told 410 and why, while a name that was
never given is 404.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mtrl_cli.local.errors import RefusedError

MAX_REMEMBERED = 10_000


class Graveyard:
    """Why something is not there any more; the oldest entries are forgotten."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[str, str] = OrderedDict()

    def bury(self, name: str, reason: str) -> None:
        self._reasons[name] = reason
        if len(self._reasons) > MAX_REMEMBERED:
            self._reasons.popitem(last=False)

    def refuse(self, field: str, name: str) -> RefusedError:
        reason = self._reasons.get(name)
        if reason is not None:
            return RefusedError(410, f"{field}: {name} is gone: {reason}")
        return RefusedError(404, f"{field}: {name!r:.80} is not known to this server process")


@dataclass(frozen=True)
class Given:
    """What a numbered create call was answered, so that the same call gets the same answer."""

    digest: bytes
    reply: dict[str, Any]


@dataclass(eq=False)
class Session:
    id: str
    last_beat: float
    models: set[str] = field(default_factory=set)
    samplers: set[str] = field(default_factory=set)
    given: dict[tuple[str, int], Given] = field(default_factory=dict)

    def replay(self, kind: str, seq_id: int | None, digest: bytes) -> dict[str, Any] | None:
        """The answer to this very call, if it was made before; 409 for another with its number."""
        known = None if seq_id is None else self.given.get((kind, seq_id))
        if known is None:
            return None
        if known.digest != digest:
            raise RefusedError(
                409,
                f"{kind}: {seq_id} was used by another request in this session; "
                "take the next number",
            )
        return known.reply

    def remember(
        self, kind: str, seq_id: int | None, digest: bytes, reply: dict[str, Any]
    ) -> dict[str, Any]:
        if seq_id is not None:
            self.given[(kind, seq_id)] = Given(digest, reply)
        return reply


class Sessions:
    def __init__(self, ttl: float, now: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl
        self._now = now
        self._live: dict[str, Session] = {}
        self._gone = Graveyard()

    def create(self) -> Session:
        session = Session(f"session_{secrets.token_hex(6)}", self._now())
        self._live[session.id] = session
        return session

    def touch(self, session_id: str) -> Session:
        """The session, with a beat; 404 or 410 when there is none."""
        session = self._live.get(session_id)
        if session is None:
            raise self._gone.refuse("session_id", session_id)
        session.last_beat = self._now()
        return session

    def find(self, session_id: str) -> Session | None:
        return self._live.get(session_id)

    def remove(self, session_id: str, reason: str) -> Session | None:
        session = self._live.pop(session_id, None)
        if session is not None:
            self._gone.bury(session_id, reason)
        return session

    def silent(self) -> list[str]:
        horizon = self._now() - self._ttl
        return [s.id for s in self._live.values() if s.last_beat < horizon]

    def ids(self) -> list[str]:
        return list(self._live)
