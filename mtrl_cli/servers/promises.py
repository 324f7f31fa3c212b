"""Promises: a call is answered by an id at once, and its result is polled.

Polling is free: asking twice changes nothing. So a poll that fails is repeated until the
deadline, with a pause that grows, and only a definite answer ends it:

========================================  ===========================================
the server answers                        the promise is
========================================  ===========================================
200 with a result                         `Done`
200 ``try_again``, 408, no reply in time  pending
200 ``error`` + ``category``, 400         `Failed`: its execution failed
404, 410                                  `Lost`: the server does not know it any more
401, 403 and other 4xx                    `Denied`: the server does not let us ask
nothing, as it has ended                  `Denied`
429, 5xx, broken connection, not JSON     pending, after a pause
========================================  ===========================================
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from mtrl_cli.servers.budget import backoff
from mtrl_cli.servers.errors import Verdict
from mtrl_cli.servers.strain import Trouble
from mtrl_cli.servers.tinker.codec import MalformedReply, body_of
from mtrl_cli.servers.tinker.formats import Packed, Result, read_result
from mtrl_cli.servers.transport import NoReply, Reply
from mtrl_cli.servers.wording import one_line, picture

Category = Literal["user", "server", "unknown"]

LONGEST_POLL = 45.0
"""Seconds after which a poll without an answer is given up and made again."""

_SLOW = 0.5
_UNREADABLE_AT_MOST = 5


@dataclass(frozen=True, slots=True)
class Done:
    result: Result


@dataclass(frozen=True, slots=True)
class Failed:
    """``category`` says whose fault it was; None where the server does not say."""

    verdict: Verdict
    category: Category | None


@dataclass(frozen=True, slots=True)
class Lost:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Denied:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Late:
    """Still pending at the deadline. ``says`` is how the last poll that failed by itself did."""

    says: str


Ending = Done | Failed | Lost | Denied | Late
Post = Callable[[str, bytes, float], Awaitable[Reply]]


async def await_promise(
    post: Post,
    judge: Callable[[Reply], Verdict],
    request: str,
    deadline: float,
    polled: Callable[[], None],
    trouble: Trouble,
) -> Ending:
    """Poll the promise ``request`` until it ends or ``deadline`` (monotonic) is reached."""
    body = body_of({"request_id": request})
    quick = failures = unreadable = 0
    says = ""
    while True:
        began = time.monotonic()
        if began >= deadline:
            return Late(says)
        pause = 0.0
        polled()
        try:
            reply = await post("retrieve_future", body, min(LONGEST_POLL, deadline - began))
            if reply.status == 200:
                result = await read_result(reply.body, reply.content_type)
                ending = _ending(result)
                if ending is not None:
                    return ending
                if paused := _paused(result):
                    trouble.waits(paused, LONGEST_POLL)
                failures = 0
            elif reply.status != 408:
                verdict = judge(reply)
                ending = _refusal(verdict)
                if ending is not None:
                    return ending
                says = verdict.says
                pause = backoff(failures, verdict.retry_after)
                failures += 1
                trouble.waits(says, pause)
        except NoReply as error:
            if error.verdict.outcome == "permanent":
                return Denied(error.verdict)
            # A poll that the deadline cut off tells less than what an earlier one was told.
            if not says or time.monotonic() < deadline:
                says = error.verdict.says
            if time.monotonic() - began < LONGEST_POLL / 2:
                pause = backoff(failures)
                failures += 1
                trouble.waits(error.verdict.says, pause)
        except MalformedReply as error:
            says = str(error)
            unreadable += 1
            if unreadable >= _UNREADABLE_AT_MOST:
                return Lost(Verdict("unknown", says))
            pause = backoff(unreadable)
        if not pause:
            # Pending. A server that holds polls is asked again at once, one that does not is
            # asked less and less often.
            quick = quick + 1 if time.monotonic() - began < _SLOW else 0
            pause = min(0.01 * 2.0**quick, 1.0) * random.uniform(0.8, 1.0) if quick else 0.0
        await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))


def _ending(answer: Result) -> Ending | None:
    if isinstance(answer, Packed):
        return Done(answer)
    if answer.get("type") == "try_again":
        return None
    error = answer.get("error")
    if error is not None and "sequences" not in answer:
        category = answer.get("category")
        category = category.lower() if isinstance(category, str) else "unknown"
        says = one_line(error) if isinstance(error, str) else picture(error)
        says = says or "no reason given"
        verdict = Verdict("permanent" if category == "user" else "unknown", says)
        known: Category = (
            "user" if category == "user" else "server" if category == "server" else "unknown"
        )
        return Failed(verdict, known)
    return Done(answer)


def _paused(answer: Result) -> str | None:
    """Why a promise is pending, where its server says that it has paused the work."""
    if isinstance(answer, Packed) or answer.get("queue_state") in (None, "active"):
        return None
    reason = answer.get("queue_state_reason")
    state = one_line(str(answer["queue_state"]))
    return f"the server says {state}" + (f": {one_line(str(reason))}" if reason else "")


def _refusal(verdict: Verdict) -> Ending | None:
    if verdict.status == 400:
        return Failed(verdict, None)
    if verdict.status in (404, 410):
        return Lost(verdict)
    return Denied(verdict) if verdict.outcome == "permanent" else None
