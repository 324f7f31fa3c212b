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

Everything a server says ends up as one line: JSON is reduced to its message, HTML to its title,
a traceback to its last line, and control characters are shown instead of sent to the terminal.
"""

import email.utils
import errno
import html
import json
import random
import re
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from mtrl_cli.errors import MtrlError, untrusted

Outcome = Literal["permanent", "transient", "unknown"]

_LONGEST_LINE = 300
_LONGEST_WAIT = 60.0
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 10.0
_BILLING_PAUSE = 5.0
_READ_AT_MOST = 65_536
_PARSE_AT_MOST = 2**20
_SHORTEST_SECRET = 4

# A page may be broken or hostile: neither pattern may read a stretch of it more than a few times.
_TITLE = re.compile(r"<(title|h1)\b[^<>]{0,200}>(.{0,300}?)</\1", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]*>")


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


# --- waiting --------------------------------------------------------------------------------


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


class Budget:
    """What one logical call may spend on trying: a deadline, and a number of attempts that may
    have been executed. Those that surely were not, as when the server is away or refuses for now,
    go on until the deadline.

    Args:
        again: called before each attempt but the first one, with what ended the last one, and
            the seconds until the next.
    """

    def __init__(
        self,
        seconds: float,
        attempts: int,
        again: Callable[[Verdict, float], None] = lambda verdict, pause: None,
    ) -> None:
        self.deadline = time.monotonic() + seconds
        # An attempt with less time than this would end without a reply: unknown, not refused.
        self._least = min(1.0, 0.1 * seconds)
        self._attempts = attempts
        self._again = again
        self._failures = 0
        self._unclear = 0

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def pause(self, verdict: Verdict) -> float | None:
        """Seconds to wait before the next attempt, after one that ended in ``verdict``; None when
        the budget is spent."""
        self._failures += 1
        self._unclear += verdict.outcome != "transient"
        if self._unclear >= self._attempts:
            return None
        wait = backoff(self._failures - 1, verdict.retry_after)
        if wait + self._least >= self.left:
            return None
        self._again(verdict, wait)
        return wait


def backoff(failures: int, retry_after: float | None = None) -> float:
    """Seconds to wait after ``failures`` earlier ones, with jitter.

    Never less than asked for, and never less than without being asked: a server may ask for 0.
    """
    pause = min(_FIRST_PAUSE * 2.0 ** min(failures, 10), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
    if retry_after is None:
        return float(pause)
    return max(retry_after + random.uniform(0.0, max(0.05, 0.2 * retry_after)), float(pause))


# --- words ----------------------------------------------------------------------------------


def server_words(body: bytes) -> str:
    """What a reply's body says, as one short line."""
    text = body[:_READ_AT_MOST].decode("utf-8", "replace").strip()
    if not text:
        return ""
    if text[0] in "{[" and len(body) <= _PARSE_AT_MOST:
        try:
            return one_line(_message(json.loads(body)))
        except (ValueError, RecursionError):
            return one_line(text)
    if text[0] == "<":
        title = _TITLE.search(text)
        return one_line(html.unescape(title[2] if title else _TAG.sub(" ", text)))
    return one_line(text)


def _message(value: Any) -> str:
    """The message inside an error body: FastAPI's ``detail``, or ``error``, or ``message``."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(_message(item) for item in value[:3])
    if isinstance(value, Mapping):
        if "msg" in value:
            loc = value.get("loc")
            parts = loc if isinstance(loc, list) else []
            where = ".".join(str(part) for part in parts if part != "body")
            return f"{where}: {value['msg']}" if where else str(value["msg"])
        for key in ("detail", "error", "message"):
            if value.get(key):
                return _message(value[key])
    return json.dumps(value)[:_LONGEST_LINE]


def one_line(text: str, longest: int = _LONGEST_LINE) -> str:
    """``text`` as one line that is safe to print: its last line where it is a traceback."""
    lines = [line.strip() for line in text[:_READ_AT_MOST].splitlines() if line.strip()]
    if len(lines) > 1 and any(line.startswith("Traceback (most recent") for line in lines):
        lines = lines[-1:]
    line = "".join(_visible(char) for char in " ".join(lines))
    line = re.sub(r"\s+", " ", line).strip()
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def picture(value: Any, longest: int = 80) -> str:
    """A server's JSON value, or bytes, as one short line; of a large or deep one the beginning."""
    if isinstance(value, bytes):
        return one_line(value[: 4 * longest].decode("utf-8", "replace"), longest)
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False, default=repr).iterencode(value):
        text += piece  # lazily: all of it may be 60 MB, or nested deeper than Python goes
        if len(text) > longest:
            break
    return one_line(text, longest)


def _visible(char: str) -> str:
    """Control and direction characters as their code, so that no terminal obeys them."""
    if char == "\t" or char.isprintable():
        return char
    if unicodedata.category(char).startswith("Z"):
        return " "
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def without_secret(text: str, secret: str | None) -> str:
    """``text`` with the key masked, wherever a server repeated it: plain, as JSON, HTML or a URL
    write it, and in part, where the text was cut short within it."""
    if not secret or len(secret) < _SHORTEST_SECRET:
        return text
    for form in {secret, json.dumps(secret)[1:-1], html.escape(secret), quote(secret, safe="")}:
        text = text.replace(form, "<key>")
    if "…" in text:
        for length in range(len(secret) - 1, _SHORTEST_SECRET - 1, -1):
            text = text.replace(f"{secret[:length]}…", "<key>…")
    return text
