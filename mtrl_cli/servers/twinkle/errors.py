"""What went wrong at a Twinkle server, judged by the last line of what it says.

Twinkle answers nearly every failure with HTTP 500 and a traceback of 20 KB and more, so the
status says nothing. The last line is the error itself, and some of them are raised before a task
is queued or touched, so that the call surely was not executed:

==============================================  ============================================
last line                                       outcome
==============================================  ============================================
Rate limit exceeded, Queue timeout exceeded     transient: not executed
Adapter … not found, Adapter expired            permanent, `AdapterLost`: not executed
too many tokens, too small a batch, an unknown  permanent: not executed
class or checkpoint, a missing header or
session, an ``HTTPException: 4xx``
anything else                                   as `servers.errors` judges a 500: unknown
==============================================  ============================================
"""

import json
import re

from mtrl_cli.servers.errors import Refused, Verdict
from mtrl_cli.servers.transport import Reply, Transport
from mtrl_cli.servers.wording import one_line, picture

_TAIL = 8192
_PARSE_AT_MOST = 2**22


class AdapterLost(Refused):
    """The server no longer has the adapter: its weights and optimizer state are gone."""


_TRANSIENT = re.compile(r"Rate limit exceeded|Queue timeout exceeded")
_GONE = re.compile(r"Adapter \S+ not found|^(RuntimeError: )?Adapter expired")
_PERMANENT = re.compile(
    r"Input tokens \(\d+\) exceed|Batch size \d+ must be|Checkpoint not found or access denied"
    r"|Unknown plugin id|The model ID cannot be empty|session_id must be provided"
    r"|You need to specify a valid|HTTPException: 4\d\d|Invalid twinkle://"
)
_OVERFLOW = re.compile(r"max(imum)?[ _]model[ _]len|maximum context length")
_BAD_INPUT = re.compile(r"^(ValueError|TypeError|AssertionError|KeyError|RuntimeError: Batch)\b")


def judge(transport: Transport, reply: Reply, *, training: bool = False) -> Verdict:
    """Judge a reply that is not the one hoped for."""
    if reply.status != 500:
        return transport.judge(reply, training=training)
    says = transport.keys.without(last_line(reply.body))
    shown = f"HTTP 500: {says}" if says else "HTTP 500"
    if _TRANSIENT.search(says):
        return Verdict("transient", shown, 500)
    if _PERMANENT.search(says) or _GONE.search(says):
        return Verdict("permanent", shown, 500)
    if not training and (_BAD_INPUT.search(says) or _OVERFLOW.search(says)):
        return Verdict("permanent", shown, 500)
    return Verdict("unknown", shown, 500)


def says_adapter_lost(verdict: Verdict) -> bool:
    return _GONE.search(verdict.says.removeprefix("HTTP 500: ")) is not None


def last_line(body: bytes) -> str:
    """The error itself, as one line that is safe to print.

    Below a traceback Twinkle may note who called; those lines begin with ``[twinkle]``.
    """
    try:
        detail = json.loads(body if len(body) <= _PARSE_AT_MOST else b"")["detail"]
    except (ValueError, LookupError, TypeError, RecursionError):
        detail = body[-_TAIL:].decode("utf-8", "replace")
    if not isinstance(detail, str):
        return picture(detail, 300)
    lines = [line.strip() for line in detail[-_TAIL:].splitlines()]
    told = [line for line in lines if line and not line.startswith("[twinkle]")]
    return one_line(told[-1]) if told else ""
