"""The one classifier of failures over HTTP, for every training service.

A failure is judged by one question: *was the request executed?*

==============================================  =================  ==========================
what came back                                  reading call       training call
==============================================  =================  ==========================
no connection (refused, DNS, TLS, pool full)    transient          transient: not executed
connection broken, or no reply in time          unknown            unknown
401, 403                                        permanent          permanent (`AuthError`)
402                                             transient          transient: not executed
408                                             transient          unknown
409                                             transient          permanent: not executed
429                                             transient          transient: not executed
503 that says it refuses                        transient          transient: not executed
any other 5xx                                   unknown            unknown
3xx, any other 4xx                              permanent          permanent: not executed
2xx that cannot be read                         unknown            unknown
==============================================  =================  ==========================

A 503 says that it refuses when it carries ``Retry-After``, or when its JSON body says that the
server is busy or starting, or that its queue is full. Any other one may come from a gateway that
had already handed the request on.

A 402 is the server's word that the account may not go on until a bill is settled. It is waited
for like a 429, within the call's budget and no longer, and says what it is.

A reading call changes nothing, so *unknown* is only another word for *try again*. A training
call that is *unknown* is never sent again by itself.
"""

import email.utils
import errno
import re
import time
from dataclasses import dataclass
from typing import Literal

from mtrl_cli.errors import MtrlError
from mtrl_cli.foreign import untrusted
from mtrl_cli.servers.wording import one_line, server_words

Outcome = Literal["permanent", "transient", "unknown"]

_BILLING_PAUSE = 5.0
_LONGEST_WAIT = 60.0


class ServerError(MtrlError):
    """A training service failed a call."""


class Refused(ServerError):  # noqa: N818 - an outcome
    """The call was surely not executed. ``transient``: the same call may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = retry_after
        self.status = status


class AuthError(Refused):
    """The server does not take the key."""


class Unknown(ServerError):  # noqa: N818 - an outcome
    """The call may have been executed. ``request`` is the server's id of it, where known;
    ``failed``: the server says that its execution failed, so what is there may be half done."""

    def __init__(self, message: str, *, request: str | None = None, failed: bool = False) -> None:
        super().__init__(message)
        self.request = request
        self.failed = failed


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judged failure. ``says`` is one line: the server's words, or the connection's fate."""

    outcome: Outcome
    says: str
    status: int | None = None
    retry_after: float | None = None


class NoReply(Exception):  # noqa: N818
    """A request that ended without a reply; ``verdict`` says whether it may have been executed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.says)
        self.verdict = verdict


class ReplyTooLargeError(ConnectionError):
    """A reply is larger than any that makes sense; it was not read to its end."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the reply is larger than {most // 2**20} MiB")


def judge_reply(
    status: int, body: bytes, *, retry_after: str | None = None, training: bool = False
) -> Verdict:
    """Judge a reply that is not the one hoped for."""
    words = server_words(body)
    says = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    wait = parse_retry_after(retry_after)
    if status == 402:
        says = f"the account is paused until its bill is settled ({says})"
        wait = _BILLING_PAUSE if wait is None else wait
    refuses = body.lstrip()[:1] == b"{" and _REFUSAL.search(words) is not None
    return Verdict(_outcome(status, refuses, wait, training), says, status, wait)


def parse_retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a ``Retry-After`` header; None where it says nothing usable."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    if seconds != seconds:
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT)


def _outcome(status: int, refuses: bool, wait: float | None, training: bool) -> Outcome:
    if status in (402, 429):
        return "transient"
    if status in (408, 409) and not training:
        return "transient"
    if status == 503 and (wait is not None or refuses):
        return "transient"
    if status == 408 or status >= 500 or status < 300:
        return "unknown"
    return "permanent"


_REFUSAL = re.compile(
    r"\b(busy|overload|capacity|starting|loading|not ready|draining|shutting down|full queue"
    r"|queue\b[^.;]{0,40}\bfull\b|too many requests|rate.?limit|throttl|try again|retry)",
    re.IGNORECASE,
)


def judge_exception(error: BaseException) -> Verdict:
    """Judge a request that got no reply."""
    cause = _cause(error)
    outcome: Outcome = "transient" if _not_connected(cause) else "unknown"
    return Verdict(outcome, _fate(cause))


def _cause(error: BaseException) -> BaseException:
    # httpx-aiohttp reports every aiohttp.ClientConnectionError as httpx.ConnectTimeout, a reply
    # lost after the request was executed included. Only the original tells the two apart.
    cause = error.__cause__
    if cause is not None and _package(cause) == "aiohttp" != _package(error):
        return cause
    return error


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _not_connected(error: BaseException) -> bool:
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint(
        {
            # aiohttp
            "ClientConnectorError",
            "ConnectionTimeoutError",
            "ServerFingerprintMismatch",
            # httpx
            "ConnectError",
            "ConnectTimeout",
            "PoolTimeout",
            "UnsupportedProtocol",
            # the sockets themselves
            "ConnectionRefusedError",
            "gaierror",
        }
    )


def _fate(error: BaseException) -> str:
    names = {base.__name__ for base in type(error).__mro__}
    if "ClientConnectorDNSError" in names or "gaierror" in names:
        return "the host name is unknown"
    if (told := untrusted(error)) is not None:
        return told
    if "SSLError" in names:
        return f"no TLS connection ({one_line(str(error), 120)})"
    if _not_connected(error):
        if "ConnectionTimeoutError" in names or "ConnectTimeout" in names:
            return "no connection in time"
        code = getattr(getattr(error, "os_error", error), "errno", None)
        refused = code == errno.ECONNREFUSED or "refused" in str(error).lower()
        return "connection refused" if refused else "no connection"
    if "TimeoutError" in names or "TimeoutException" in names:
        return "no reply in time"
    if "ReplyTooLargeError" in names:
        return str(error)
    if names & {"ClientPayloadError", "ReadError", "ReplyBrokenError", "ReplyDamagedError"}:
        return "the reply broke off"
    if names & {"ServerDisconnectedError", "ConnectionResetError", "ReplyMissingError"}:
        return "the connection was closed before the reply"
    if names & {"ClientResponseError", "RemoteProtocolError", "NotHttpError"}:
        return "the reply is not HTTP"
    words = one_line(str(error), 120)
    return f"the connection broke ({words or type(error).__name__})"


# --- context overflow -----------------------------------------------------------------------

_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|max(imum)?[ _]?(model|seq\w*)[ _]?len"
    r"|maximum sequence length|(prompt|input|sequence|request) (is |are )?too long"
    r"|exceeds? the (model'?s? )?context|longer than the (model'?s? )?(maximum|context)",
    re.IGNORECASE,
)


def says_context_full(verdict: Verdict) -> bool:
    """Whether a refusal of a sampling request means that the context window is full.

    Engines say so with 400, 413, 422 or 500 and in their own words; what they have in common is
    the name of the limit and a number beside it. A failed promise has no status.
    """
    if verdict.status not in (None, 400, 413, 422, 500):
        return False
    words = verdict.says.removeprefix(f"HTTP {verdict.status}: ")
    return _OVERFLOW.search(words) is not None and re.search(r"\d", words) is not None
