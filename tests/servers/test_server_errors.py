"""The classifier: every row of its table, and what becomes of a server's words."""

import errno
import time
from email.utils import formatdate

import aiohttp
import httpx
import pytest

from mtrl_cli.servers import errors, wording
from mtrl_cli.servers.budget import Budget, backoff

RED = "\x1b[31mred\x07"


@pytest.mark.parametrize(
    ("status", "body", "retry_after", "reading", "training"),
    [
        (400, b"", None, "permanent", "permanent"),
        (401, b"", None, "permanent", "permanent"),
        (403, b"", None, "permanent", "permanent"),
        (404, b"", None, "permanent", "permanent"),
        (408, b"", None, "transient", "unknown"),
        (409, b"", None, "transient", "permanent"),
        (410, b"", None, "permanent", "permanent"),
        (413, b"", None, "permanent", "permanent"),
        (422, b"", None, "permanent", "permanent"),
        (429, b"", None, "transient", "transient"),
        (429, b"", "3", "transient", "transient"),
        (301, b"", None, "permanent", "permanent"),
        (500, b"", None, "unknown", "unknown"),
        (502, b"<html>Bad Gateway</html>", None, "unknown", "unknown"),
        (503, b"", None, "unknown", "unknown"),
        (503, b"", "2", "transient", "transient"),
        (503, b'{"detail": "queue is full"}', None, "transient", "transient"),
        (503, b'{"detail": "queue full"}', None, "transient", "transient"),
        (503, b'{"error": "The request queue is currently full."}', None,
         "transient", "transient"),
        (503, b'{"detail": "model is loading"}', None, "transient", "transient"),
        (503, b'{"detail": "the disk is full"}', None, "unknown", "unknown"),
        (503, b"the upstream is busy: try again", None, "unknown", "unknown"),
        (503, b"upstream connect error or disconnect/reset before headers", None,
         "unknown", "unknown"),
        (504, b"", None, "unknown", "unknown"),
        (200, b"surprise", None, "unknown", "unknown"),
    ],
)  # fmt: skip
def test_status_table(status, body, retry_after, reading, training):
    assert errors.judge_reply(status, body, retry_after=retry_after).outcome == reading
    assert (
        errors.judge_reply(status, body, retry_after=retry_after, training=True).outcome == training
    )


def _raised(outer, cause=None):
    try:
        raise outer from cause
    except Exception as error:
        return error


_KEY = aiohttp.client_reqrep.ConnectionKey("h", 80, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "outcome", "says"),
    [
        (aiohttp.ClientConnectorError(_KEY, OSError(errno.ECONNREFUSED, "x")), "transient",
         "connection refused"),
        (aiohttp.ConnectionTimeoutError("x"), "transient", "no connection in time"),
        (aiohttp.ServerDisconnectedError(), "unknown", "closed before the reply"),
        (aiohttp.SocketTimeoutError("x"), "unknown", "no reply in time"),
        (TimeoutError(), "unknown", "no reply in time"),
        (aiohttp.ClientPayloadError("x"), "unknown", "broke off"),
        (aiohttp.ClientOSError(errno.EPIPE, "Broken pipe"), "unknown", "Broken pipe"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "unknown", "closed before the reply"),
        (httpx.ConnectError("refused"), "transient", "connection refused"),
        (httpx.PoolTimeout("x"), "transient", "no connection"),
        (httpx.ReadTimeout("x"), "unknown", "no reply in time"),
        (httpx.RemoteProtocolError("x"), "unknown", "not HTTP"),
        # What httpx-aiohttp makes of a reply lost after execution:
        (_raised(httpx.ConnectTimeout("x"), aiohttp.ServerDisconnectedError()), "unknown",
         "closed before the reply"),
        (_raised(httpx.ConnectTimeout("x"), aiohttp.ClientOSError(errno.ECONNRESET, "reset")),
         "unknown", "reset"),
        (_raised(httpx.ConnectError("x"),
                 aiohttp.ClientConnectorError(_KEY, OSError(errno.ENETUNREACH, "x"))),
         "transient", "no connection"),
    ],
)  # fmt: skip
def test_exception_table(error, outcome, says):
    verdict = errors.judge_exception(error)
    assert verdict.outcome == outcome
    assert says in verdict.says


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("0", 0.0),
        ("-5", 0.0),
        ("2.5", 2.5),
        ("1e9", 60.0),
        ("inf", 60.0),
    ],
)
def test_retry_after(header, seconds):
    assert errors.parse_retry_after(header) == seconds


def test_retry_after_as_a_date():
    in_twenty = errors.parse_retry_after(formatdate(time.time() + 20, usegmt=True))
    assert 18 <= in_twenty <= 20


def test_pauses_grow_are_jittered_and_honour_retry_after():
    pauses = [[backoff(n) for _ in range(50)] for n in range(8)]
    assert all(0.125 * 2**n <= min(p) and max(p) <= 0.25 * 2**n for n, p in enumerate(pauses[:5]))
    assert max(map(max, pauses)) <= 10
    assert len(set(pauses[0])) > 10
    assert all(3 <= backoff(0, 3.0) <= 3.6 for _ in range(50))


def test_budget_is_spent_by_attempts_or_by_time():
    told: list[tuple[str, float]] = []
    budget = Budget(100, 3, lambda verdict, pause: told.append((verdict.says, pause)))
    boom = errors.Verdict("unknown", "boom")
    pauses = [budget.pause(boom) for _ in range(3)]
    assert [pause is None for pause in pauses] == [False, False, True]
    assert told == [("boom", pauses[0]), ("boom", pauses[1])]
    late = errors.Verdict("transient", "later", 429, retry_after=30.0)
    assert Budget(1, attempts=9).pause(late) is None


@pytest.mark.parametrize("seconds", [120.0, 600.0])
def test_a_server_that_is_away_is_waited_for_as_long_as_the_budget_says(monkeypatch, seconds):
    now = 1_000.0
    monkeypatch.setattr("mtrl_cli.servers.errors.time.monotonic", lambda: now)
    budget = Budget(seconds, 8)
    away = errors.Verdict("transient", "connection refused")
    while (pause := budget.pause(away)) is not None:
        now += pause
    assert seconds - 10 <= now - 1_000 < seconds


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"detail": "no such model"}', "no such model"),
        (b'{"error": {"message": "over there"}}', "over there"),
        (b'{"detail": [{"loc": ["body", "loss_fn"], "msg": "not known", "input": "dro"}]}',
         "loss_fn: not known"),
        (b"<html><head><title>502 Bad &amp; Gateway</title></head><body>x</body></html>",
         "502 Bad & Gateway"),
        (b"<p>no <b>title</b></p>", "no title"),
        (b"Traceback (most recent call last):\n  File x\n    y\nValueError: the end\n",
         "ValueError: the end"),
        (b"a\r\nb\tc", "a b c"),
        (b'{"broken', '{"broken'),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"detail": null, "x": 1}', '{"detail": null, "x": 1}'),
    ],
)  # fmt: skip
def test_server_words(body, line):
    assert wording.server_words(body) == line


def test_control_and_direction_characters_are_shown():
    line = wording.server_words(f'{{"detail": "{RED}\u202eevil\u0085x"}}'.encode())
    raw = wording.one_line(f"{RED}\u202eevil\x9bx")
    assert raw == "\\x1b[31mred\\x07\\u202eevil\\x9bx"
    assert "\x1b" not in line
    assert line.isprintable()


def test_long_bodies_are_shortened():
    trace = "Traceback (most recent call last):\n" + "  File\n" * 3000 + "ValueError: " + "x" * 999
    assert len(wording.server_words(trace.encode())) <= 300
    assert len(wording.server_words(b'{"detail": "%s"}' % (b"y" * 20_000))) <= 300
    assert len(wording.server_words(b"[" * 100_000)) <= 300


@pytest.mark.parametrize(
    ("status", "words", "full"),
    [
        (400, "This model's maximum context length is 2048 tokens, you requested 3000", True),
        (400, "300 prompt tokens + 64 exceed the context of 256", True),
        (500, "ValueError: prompt is too long: 4097 > max_model_len 4096", True),
        (422, "input length 9000 exceeds the model's context window of 8192", True),
        (None, "sequence too long: 5000 tokens", True),
        (400, "loss_fn: unknown", False),
        (400, "logprobs and tokens differ in length: 20 and 21", False),
        (429, "too many tokens per minute; maximum context 1000", False),
        (500, "context window lost", False),
        (404, "maximum context length 5", False),
    ],
)
def test_context_overflow_is_told_by_words_and_numbers(status, words, full):
    says = words if status is None else f"HTTP {status}: {words}"
    assert errors.says_context_full(errors.Verdict("permanent", says, status)) is full


def test_keys_are_masked():
    assert wording.without_secret("bad key tml-abcdef!", "tml-abcdef") == "bad key <key>!"
    assert wording.without_secret("nothing", None) == "nothing"
