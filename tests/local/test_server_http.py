"""What any HTTP server owes its clients: limits, other people's torn requests, and an end."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtrl_cli.local.app import MAX_BODY
from tests.local.server_kit import (
    BASE_MODEL,
    Client,
    backward,
    datum,
    make_base,
    sample,
    serving,
    start,
    until,
)

HEARTBEAT = "/api/v1/session_heartbeat"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("store"), base, "--poll", "2") as made:
        yield made


@contextmanager
def connection(client: Client) -> Iterator[socket.socket]:
    url = client.http.base_url
    with socket.create_connection((url.host, url.port or 0), timeout=20) as made:
        yield made


def request(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST /api/v1/{path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [*headers] or [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer(peer: socket.socket) -> tuple[int, Any]:
    with peer.makefile("rb") as file:
        status = int(file.readline().split()[1])
        length = 0
        while (line := file.readline().strip().lower()) != b"":
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status, json.loads(file.read(length) or b"null")


def pieces(total: int) -> Iterator[bytes]:
    yield b'{"session_id": '
    for _ in range(total // 2**20):
        yield b" " * 2**20
    yield b"1}"


def test_a_body_may_come_in_chunks_or_compressed(client: Client) -> None:
    body = json.dumps({"session_id": client.session()}).encode()
    for content in (iter([body[:5], body[5:]]), body):
        assert client.http.post(HEARTBEAT, content=content, headers=JSON).status_code == 200
    zipped = {**JSON, "Content-Encoding": "gzip"}
    packed = client.http.post(HEARTBEAT, content=gzip.compress(body), headers=zipped)
    assert packed.status_code == 200
    broken = client.http.post(HEARTBEAT, content=b"not gzip at all", headers=zipped)
    assert broken.status_code == 400


@pytest.mark.parametrize("kind", ["sized", "chunked", "gzip"])
def test_a_body_too_large_is_refused(client: Client, kind: str) -> None:
    total = MAX_BODY + 2**20
    content: Any = pieces(total)
    headers = dict(JSON)
    if kind != "chunked":
        content = b"".join(content)
    if kind == "gzip":
        content = gzip.compress(content, 1)
        headers["Content-Encoding"] = "gzip"
    refused = client.http.post(HEARTBEAT, content=content, headers=headers)
    assert refused.status_code == 413
    assert refused.json()["detail"].startswith(f"body: larger than {MAX_BODY} bytes")
    assert client.session()


def test_a_body_at_the_limit_is_read(client: Client) -> None:
    raw = b'{"session_id": 1' + b" " * (MAX_BODY - 17) + b"}"
    response = client.http.post(HEARTBEAT, content=raw, headers=JSON)
    assert (len(raw), response.status_code) == (MAX_BODY, 400)
    assert "session_id" in response.json()["detail"]


def test_no_such_route_or_method(client: Client) -> None:
    for method, path in (
        ("GET", "asample"), ("PUT", "asample"), ("DELETE", "healthz"), ("POST", "healthz"),
        ("GET", "nothing"), ("POST", "nothing"), ("POST", "sessions/a/b/finish"), ("PATCH", "x"),
        ("GET", "samplers/a/b"), ("GET", "healthz/"),
    ):  # fmt: skip
        response = client.http.request(method, f"/api/v1/{path}", json={})
        assert response.status_code == 404, (method, path)
        assert "no such endpoint" in response.json()["detail"]
    assert client.http.head("/api/v1/healthz").status_code == 404


def test_who_asks_before_sending_is_answered(client: Client) -> None:
    with connection(client) as peer:
        body = json.dumps({"session_id": client.session()}).encode()
        peer.sendall(
            request(
                "session_heartbeat", b"", f"Content-Length: {len(body)}", "Expect: 100-continue"
            )
        )
        assert peer.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.sendall(body)
        assert answer(peer) == (200, {"type": "session_heartbeat"})


def test_what_is_not_http_is_refused(client: Client) -> None:
    for sent in (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2**20 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ):
        with connection(client) as peer, suppress(ConnectionError):  # it may leave bytes unread
            peer.sendall(sent)
            assert peer.recv(12).split()[1] == b"400"
    assert client.session()


def test_torn_and_stalled_requests_do_not_hurt_others(client: Client) -> None:
    whole = request("session_heartbeat", b'{"session_id": "x"}')
    stalled = []
    url = client.http.base_url
    for length in range(1, len(whole) - 1, 3):  # cut anywhere; half go, half stay open
        peer = socket.create_connection((url.host, url.port or 0))
        peer.sendall(whole[:length])
        if length % 2:
            peer.close()
        else:
            stalled.append((peer, length))
    began = time.monotonic()
    assert client.session()
    assert time.monotonic() - began < 1
    for peer, length in stalled:  # and who was only slow is served
        peer.sendall(whole[length:])
        assert answer(peer)[0] == 404
        peer.close()


def test_a_client_that_does_not_read_hurts_nobody(client: Client) -> None:
    body = {"session_id": client.session(), "base_model": BASE_MODEL}
    sampler = client.call("create_sampling_session", body)["sampling_session_id"]
    asked = sample(sampler, [1, 2, 3], 100, params={"seed": 1}, num_samples=200)
    promise = client.call("asample", asked)["request_id"]
    size = len(json.dumps(client.result(promise)))
    assert size > 100_000
    one = request("retrieve_future", json.dumps({"request_id": promise}).encode())
    with connection(client) as peer:
        peer.sendall(one * 100)
        began = time.monotonic()
        for _ in range(20):
            assert client.session()
        assert time.monotonic() - began < 2
        for _ in range(3):
            assert len(client.result(promise)["sequences"]) == 200
    assert client.session()


def test_who_leaves_its_poll_is_forgotten(client: Client) -> None:
    """The work goes on, and another connection gets its answer."""
    model = client.model(client.session())
    data = [datum([1, *range(2, 47)] * 2) for _ in range(300)]
    promise = client.call("forward_backward", backward(model, 1, data))["request_id"]
    for _ in range(5):
        with connection(client) as peer:
            peer.sendall(request("retrieve_future", json.dumps({"request_id": promise}).encode()))
    assert "error" not in client.result(promise)
    until(lambda: client.counters()["promises"]["pending"] == 0)


def test_it_ends_although_connections_are_open(tmp_path: Path, base: Path) -> None:
    """Idle, in the middle of a head, of a body, and in a long poll, which is answered."""
    process, ready = start(tmp_path / "store", base, "--max-rows", "1")
    client = Client(ready["url"])
    body = {"session_id": client.session(), "base_model": BASE_MODEL}
    sampler = client.call("create_sampling_session", body)["sampling_session_id"]
    for _ in range(4):
        promise = client.call("asample", sample(sampler, [1], 120, num_samples=1024))["request_id"]
    polled: list[httpx.Response] = []

    def poll() -> None:
        polled.append(httpx.post(
            f"{ready['url']}/api/v1/retrieve_future", json={"request_id": promise}, timeout=20,
            trust_env=False,
        ))  # fmt: skip

    thread = threading.Thread(target=poll)
    thread.start()
    with connection(client) as idle, connection(client) as head, connection(client) as half:
        whole = request("session_heartbeat", b'{"session_id": "x"}')
        idle.sendall(whole)
        assert answer(idle)[0] == 404
        head.sendall(whole[:20])
        half.sendall(whole[:-5])
        time.sleep(0.3)
        assert not polled
        began = time.monotonic()
        process.terminate()
        _, errors = process.communicate(timeout=10)
        assert time.monotonic() - began < 3
    thread.join(10)
    assert polled[0].json()["type"] == "try_again"
    assert (process.returncode, errors.count("\n")) == (0, 1), errors
    client.close()


def test_many_connections_come_at_once(client: Client) -> None:
    url = client.http.base_url
    peers = [socket.create_connection((url.host, url.port or 0)) for _ in range(300)]
    try:
        for peer in peers:
            peer.sendall(b"GET /api/v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for peer in peers:
            assert answer(peer) == (200, {"status": "ok"})
    finally:
        for peer in peers:
            peer.close()
