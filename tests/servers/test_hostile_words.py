"""What hostile servers say, and when: no pattern takes seconds over a page, no storm of
``Retry-After: 0`` is met at full speed, no key is repeated in whatever form, no address is read in
two ways."""

import asyncio
import base64
import json
import time

import pytest

from mtrl_cli.errors import UsageError
from mtrl_cli.rollout.ports import PolicyFailure
from mtrl_cli.servers import budget, errors, keys, wording
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import Refused, ServerError, Unknown
from mtrl_cli.servers.heartbeat import Heartbeat
from mtrl_cli.servers.interface import Capabilities
from mtrl_cli.servers.limiter import Limiter
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.servers.twinkle.errors import last_line
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .calls import ENDPOINTS, SPEC, Trained, turn
from .raw import raw, reply
from .twinkle_kit import Trained as TwinkleTrained
from .twinkle_kit import connected

KEY = "tml-" + "s3cret+/=" * 3
SHORT_KEY = "tml-key"

DEEP = b"[" * 900 + b"]" * 900
PAGES = {
    "titles that never end": b"<title" * 11_000,
    "headings that never end": b"<h1>" + b"<h1 " * 16_000,
    "one title and many attributes": b"<title " + b"a=b " * 16_000,
    "opening brackets": b"<" * 65_000,
    "words and brackets": b"<a" * 32_000,
    "entities": b"<p>" + b"&amp" * 16_000,
    "spaces": b"<p>" + b" " * 65_000 + b"x",
    "numbers of limits": b"context length " * 4_000,
    "a deep body": DEEP,
    "deep messages": b'{"detail":' * 5_000 + b"1" + b"}" * 5_000,
    "a long list": b"[" + b'"a",' * 200_000 + b'"a"]',
    "adapters": b"Adapter " + b"x" * 60_000,
    "a large body": b'{"detail": "' + b"x" * 2**24 + b'"}',
}


@pytest.mark.parametrize("page", PAGES)
def test_no_page_takes_long(page):
    began = time.process_time()
    verdict = errors.judge_reply(500, PAGES[page])
    errors.says_context_full(verdict)
    assert last_line(PAGES[page]).isprintable()
    assert verdict.says.isprintable()
    assert len(verdict.says) < 320
    assert time.process_time() - began < 2.0  # a pattern that goes back takes minutes


def test_a_value_of_any_depth_and_size_has_a_picture():
    deep = current = []
    for _ in range(100_000):
        current.append([])
        current = current[0]
    assert wording.picture({"a": deep}).startswith('{"a": [[[[')
    assert wording.picture({"a": [1.5] * 10**6}, 40) == '{"a": [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.…'
    assert wording.picture("\x1b[2J") == '"\\u001b[2J"'
    assert wording.picture(b"\xff\x1b") == "\ufffd\\x1b"
    while deep:  # a list so deep cannot be freed in one go
        deep = deep.pop()


# --- storms ------------------------------------------------------------------------------------


def test_retry_after_0_is_no_leave_to_storm():
    pauses = [[budget.backoff(n, 0.0) for _ in range(50)] for n in range(6)]
    assert all(min(p) >= 0.125 * 2**n for n, p in enumerate(pauses[:5]))
    limiter = Limiter()
    limiter.hold(0.0, "HTTP 429")
    assert limiter.closed
    first = limiter._pause
    limiter.hold(0.0, "HTTP 429")
    assert limiter._pause == 2 * first


@pytest.mark.parametrize("status", [429, 402, 503])
async def test_a_storm_ends_with_the_budget(connect, status):
    async with ScriptedPolicyServer() as server:
        client = await connect(server, sample_timeout=0.5)
        server.faults.add("asample", faults.status(status, retry_after=0), times=-1)
        with pytest.raises(PolicyFailure, match=str(status)):
            await client.sample(turn(await client.base_policy()))
        assert 1 <= len(server.requests("asample")) <= 10


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        KEY,
        json.dumps({"detail": f"the key {KEY} is old"}),
        json.dumps({"detail": "x" * 280 + KEY}),  # cut within the key
        json.dumps({"detail": {"key": KEY}}),
        f"<title>{KEY}</title>",
        KEY.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D"),
        f"Traceback (most recent call last):\n  x\nValueError: {KEY}",
    ],
)
def test_the_key_in_an_error_body(said):
    own = keys.Keys(KEY)
    body = own.struck(said.encode(), said=True)
    shown = own.without(errors.judge_reply(500, body).says)
    assert KEY[:8] not in shown
    assert KEY[:8] not in own.without(errors.judge_reply(500, said.encode()).says)
    assert KEY[:8] not in own.without(last_line(body))


def test_a_short_key_is_struck_from_words_and_left_in_data():
    assert keys.Keys("1234").struck(b'{"tokens": [1234]}', said=False) == b'{"tokens": [1234]}'
    assert keys.Keys("1234").struck(b"key 1234?", said=True) == b"key <key>?"
    assert keys.Keys(KEY).struck(KEY.encode(), said=False) == b"<key>"
    assert keys.Keys(None).struck(b"", said=True) == b""


REPEATS = {
    "an error": lambda key: faults.status(400, {"detail": f"{'x' * 270} bad key {key}"}),
    "a failure": lambda key: faults.fail(f"no {key}", "user"),
    "a reply that is none": lambda key: faults.body({"request": key}),
    "a deep reply": lambda key: faults.body(b'{"request_id":' + DEEP + b"}"),
    "words": lambda key: faults.body(f"hello {key}"),
}


@pytest.mark.parametrize("key", [KEY, SHORT_KEY])
@pytest.mark.parametrize("repeats", REPEATS)
async def test_no_failure_of_tinker_holds_the_key(connect, repeats, key):
    async with ScriptedPolicyServer(api_key=key) as server:
        trained = await Trained(await connect(server, key=key)).prepare()
        for kind, endpoint in ENDPOINTS.items():
            server.faults.add(endpoint, REPEATS[repeats](key))
            with pytest.raises((Refused, Unknown)) as caught:
                await trained.execute(kind)
            assert key not in str(caught.value)
            assert str(caught.value).isprintable()
        assert not any(key in request for request in trained.accepted)


@pytest.mark.parametrize("key", [KEY, SHORT_KEY])
@pytest.mark.parametrize("repeats", REPEATS)
async def test_no_failure_of_twinkle_holds_the_key(repeats, key, monkeypatch):
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.001)
    async with ScriptedTwinkleServer() as server, connected(server, key=key) as client:
        trained = await TwinkleTrained.on(client)
        for path in ("forward_backward", "clip_grad_and_step", "save"):
            server.faults.add(f"model/scripted/twinkle/{path}", REPEATS[repeats](key), times=-1)
        for work in (trained.train, trained.publish, trained.save):
            with pytest.raises(ServerError) as caught:
                await work()
            assert key not in str(caught.value)
            assert str(caught.value).isprintable()
        server.faults.add("sampler/scripted/twinkle/sample", REPEATS[repeats](key), times=-1)
        with pytest.raises(PolicyFailure) as failed:
            await client.sample(turn(await client.base_policy()))
        assert key not in str(failed.value)
        assert str(failed.value).isprintable()


def jwt(claims):
    return "h." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode() + ".s"


@pytest.mark.parametrize(
    "token",
    [
        jwt({"iat": 0, "exp": 10**400}),
        jwt({"iat": "soon", "exp": 1}),
        jwt({"iat": None, "exp": 1}),
        jwt([1, 2]),
        jwt({"iat": 5, "exp": 1}),
        jwt({"iat": float("nan"), "exp": 1}),
        "h." + base64.urlsafe_b64encode(b"[" * 5000).decode() + ".s",
        "h.\x00.s",
        "h..s",
        "plain",
    ],
)
def test_a_token_without_a_life(token):
    assert keys.lifetime(token) is None


@pytest.mark.parametrize("token", [None, 5, "", "a b", "a\nb", "ké", "x" * 10_000, ["t"], {}])
def test_what_no_header_can_carry_is_no_token(token):
    assert keys.usable_token(token) is None


# --- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("HTTP://host:8000", "http://host:8000"),
        ("hTTps://Host/", "https://Host"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://[fe80::1%25eth0]:8000", "http://[fe80::1%25eth0]:8000"),
        ("http://host/api/v1/", "http://host"),
        ("http://host/prefix//", "http://host/prefix"),
        ("  http://host  ", "http://host"),
        ("http://bücher.example", "http://bücher.example"),
        ("http://xn--bcher-kva.example", "http://xn--bcher-kva.example"),
        ("http://host./", "http://host."),
    ],
)
def test_an_address_and_how_it_is_read(written, read):
    assert Address.of(written, None).url == read


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("http://user:pass@host", "user name or password"),
        ("http://user@host:1", "user name or password"),
        ("http://:p@host", "user name or password"),
        ("http://u:p@[::1", "user name or password"),
        ("http://host?key=secret", "query"),
        ("http://host/?", "query"),
        ("http://host/#x", "query"),
        ("http://ho st", "not an address"),
        ("http://host\n.evil", "not an address"),
        ("http://%31", "not an address"),
        ("http://xn--", "not an address"),
        ("http://xn--zzzzzzzzzz\u00df", "not an address"),
        ("http://[::1", "not an address"),
        ("http://[::g]", "not an address"),
        ("http://300.1.1.1", "not an address"),
        ("http://1.2.3", "not an address"),
        ("http://a..b", "not an address"),
        ("http://" + "a" * 64, "not an address"),
        ("http://host:99999", "not an address"),
        ("http://host:x", "not an address"),
        ("http://", "not an address"),
        ("ftp://host", "not an address"),
        ("host:8000", "not an address"),
        ("//host", "not an address"),
        ("", "not an address"),
    ],
)
def test_an_address_that_is_refused(written, told):
    with pytest.raises(UsageError, match=told) as caught:
        Address.of(written, None)
    assert str(caught.value).startswith("server.base_url: ")
    assert str(caught.value).isprintable()
    assert "pass" not in str(caught.value).replace("password", "")


# --- a heartbeat, and results of other calls ---------------------------------------------------


async def test_a_heartbeat_survives_whatever_answers_it():
    async with raw() as server:
        server.answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff=\xfe; Path=/\r\n\r\nbody "
        server.more = b"without end "
        beats = Heartbeat(Address.of(server.url, KEY), "session", 0.01)
        beats.start()
        async with asyncio.timeout(20):
            while beats.beats < 3:
                await asyncio.sleep(0.01)
            server.answer, server.more = b"\x00 not HTTP", None
            seen = len(server.seen)
            while len(server.seen) < seen + 3:
                await asyncio.sleep(0.01)
            server.answer = reply(b"", status="404 Not Found")
            while beats.lost is None:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(beats.stop)
        assert b"Cookie" not in b"".join(server.seen)


@pytest.mark.parametrize("kind", [kind for kind in ENDPOINTS if kind != "forward_backward"])
@pytest.mark.parametrize(
    "result",
    [
        {"type": "sample", "sequences": []},
        {"loss_fn_outputs": [], "metrics": {}},
        {"type": "forward_backward", "metrics": {}},
        {"type": "create_model", "model_id": "another", "path": "scripted://another/weights/x"},
    ],
)
async def test_the_result_of_another_call_is_none(connect, kind, result):
    """A load or a step needs nothing from its result; it must not take just any."""
    if result.get("type") == kind:
        result = {"type": "optim_step", "model_id": "another"}
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server)).prepare()
        server.faults.add("retrieve_future", faults.body(result))
        with pytest.raises(Unknown, match="another call"):
            await trained.execute(kind)


async def test_a_checkpoint_found_by_name_has_a_name_fit_to_be_kept(connect):
    async with ScriptedPolicyServer() as server:
        trained = await Trained(await connect(server)).prepare()
        call = trained.call("publish")
        path = f"training_runs/{trained.model}/checkpoints"
        name = "sampler_weights/run/a1/step-000001"
        for uri in ("a\nb", "\x1b[2J", "x" * 5000, 7, "", None):
            listed = {"checkpoints": [{"checkpoint_id": name, "tinker_path": uri}]}
            server.faults.add(path, faults.status(200, listed))
            assert await trained.client.find_saved(call) is None


async def test_a_model_list_of_nonsense_is_no_list():
    capabilities = Capabilities("immutable", False, True, True, True)
    async with ScriptedPolicyServer() as server:
        for models in (
            [{"model_name": {"a": 1}}, {"model_name": []}, 5, None, {"model_name": ""}],
            "scripted",
            {"model_name": "scripted"},
        ):
            server.faults.add(
                "get_server_capabilities", faults.status(200, {"supported_models": models})
            )
            client = TinkerService(Address.of(server.url, None), "scripted", capabilities)
            await client.connect()
            assert await client.execute(client.create_model(SPEC), lambda request: None)
            await client.close()
