"""Snapshots on a Tinker server: found in its list, and downloaded without trusting what arrives."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.numpy import load_file, save

from mtrl_cli.servers.address import Address
from mtrl_cli.servers.errors import ServerError
from mtrl_cli.servers.interface import CannotList, SnapshotFacts
from mtrl_cli.servers.tinker.snapshots import TinkerSnapshots

URI = "tinker://m:train:0/sampler_weights/RUN-a1-step-000001"
RUN = "/api/v1/training_runs/m:train:0/checkpoints"
KEY = "tml-secret-key"
WEIGHTS = save({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})

Handler = Callable[[web.Request], object]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 0.05)


LAST = "/last"


@asynccontextmanager
async def serving(routes: Mapping[str, Handler]) -> AsyncIterator[tuple[TestServer, list[str]]]:
    """A server of these GET routes; the paths that were asked for, with the key where it came."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        key = request.headers.get("X-API-Key")
        if request.path != LAST:
            asked.append(f"{request.path} {key}")
        handler = routes.get(request.path)
        answer = web.Response(status=404) if handler is None else handler(request)
        assert isinstance(answer, web.StreamResponse)
        return answer

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield server, asked
    finally:
        await _accepted(server)
        await server.close()


async def _accepted(server: TestServer) -> None:
    """One more request: connections are accepted in their order, so that those of a client which
    gave up are the server's by then, and closed with it."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(f"GET {LAST} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    await reader.read()
    writer.close()
    await writer.wait_closed()


def snapshots(server: TestServer) -> TinkerSnapshots:
    return TinkerSnapshots(Address(str(server.make_url("")).rstrip("/"), KEY))


def listed(*entries: Mapping[str, object]) -> Handler:
    return lambda request: web.json_response({"checkpoints": list(entries)})


def packed(*files: tuple[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def sends(content: bytes) -> Handler:
    return lambda request: web.Response(body=content)


def leads_to(url: str) -> Handler:
    return lambda request: web.Response(status=302, headers={"Location": url})


async def test_what_the_list_says() -> None:
    entry = {"tinker_path": URI, "time": "2026-11-29T12:00:00Z", "size_bytes": 77, "public": False}
    async with serving({RUN: listed({"tinker_path": URI + "x"}, entry)}) as (server, asked):
        facts = await snapshots(server).facts(URI)
        assert facts == SnapshotFacts(URI, "2026-11-29T12:00:00Z", 77, None)
        assert await snapshots(server).facts(URI + "yz") is None
    assert asked[:2] == [f"/api/v1/client/config {KEY}", f"{RUN} {KEY}"]


async def test_a_uri_without_its_kind_is_found_by_the_one_that_is_listed() -> None:
    """As SkyRL tx has it."""
    entries = [{"tinker_path": URI.replace("sampler_weights", "weights")}, {"tinker_path": URI}]
    async with serving({RUN: listed(*entries[:1])}) as (server, _):
        assert await snapshots(server).facts(URI.replace("sampler_weights/", "")) is None
    async with serving({RUN: listed(*entries)}) as (server, _):
        assert await snapshots(server).facts(URI.replace("sampler_weights/", "")) is not None


async def test_a_model_that_is_not_there_differs_from_a_server_without_a_list() -> None:
    runs = {"/api/v1/training_runs": lambda request: web.json_response({"training_runs": []})}
    async with serving(runs) as (server, _):
        assert await snapshots(server).facts(URI) is None
    async with serving({}) as (server, _):
        with pytest.raises(CannotList, match="has no list of checkpoints"):
            await snapshots(server).facts(URI)
        with pytest.raises(CannotList, match="names no checkpoint"):
            await snapshots(server).facts("base://model")


async def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not() -> None:
    answers = iter([web.Response(status=503), web.Response(status=429)])
    entry = {"tinker_path": URI}

    def busy(request: web.Request) -> object:
        return next(answers, None) or web.json_response({"checkpoints": [entry]})

    async with serving({RUN: busy}) as (server, asked):
        assert await snapshots(server).facts(URI) == SnapshotFacts(URI, None, None, None)
        assert len([path for path in asked if path.startswith(RUN)]) == 3
    denied = {RUN: lambda request: web.json_response({"detail": f"no {KEY}"}, status=403)}
    async with serving(denied) as (server, asked):
        with pytest.raises(ServerError, match="403: no <key>"):
            await snapshots(server).facts(URI)
        assert [path for path in asked if path.startswith(RUN)] == [f"{RUN} {KEY}"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
async def test_the_key_does_not_follow_the_link(tmp_path: Path, mode: str) -> None:
    archive = packed(
        ("adapter_model.safetensors", WEIGHTS), ("sub/adapter_config.json", b"{}"), mode=mode
    )
    async with serving({"/signed": sends(archive)}) as (store, fetched):
        path = f"{RUN}/sampler_weights/RUN-a1-step-000001/archive"
        link = str(store.make_url("/signed"))
        async with serving({path: leads_to(link)}) as (server, _):
            await snapshots(server).download(URI, tmp_path)
    assert fetched == ["/signed None"]
    names = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.*"))
    assert names == ["adapter_model.safetensors", "sub/adapter_config.json"]
    array = load_file(tmp_path / "adapter_model.safetensors")["w"]
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


async def test_a_server_that_knows_the_bare_name_is_asked_for_it(tmp_path: Path) -> None:
    """As SkyRL tx serves it; the link may be relative."""
    archive = packed(("adapter_model.safetensors", WEIGHTS))
    path = f"{RUN}/RUN-a1-step-000001"
    routes: dict[str, Handler] = {
        f"{RUN}/sampler_weights/RUN-a1-step-000001/archive": lambda _: web.Response(status=405),
        f"{path}/archive": leads_to("download"),
        f"{path}/download": sends(archive),
    }
    async with serving(routes) as (server, _):
        await snapshots(server).download(URI, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["adapter_model.safetensors"]


def linked() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("model.safetensors")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (packed(("../out.safetensors", WEIGHTS)), "refused"),
        (packed(("/tmp/out.safetensors", WEIGHTS)), "refused"),
        (linked(), "refused"),
        (packed(("config.json", b"{}")), "no weights in safetensors"),
        (packed(("model.safetensors", WEIGHTS[:-4])), "model.safetensors .* is damaged"),
        (packed(("model.safetensors", WEIGHTS))[:600], "cannot be unpacked|is damaged"),
        (packed(*[("model.safetensors", WEIGHTS)] * 2), "cannot be unpacked"),
        (b"<html>not an archive</html>", "cannot be unpacked"),
        (b"", "cannot be unpacked"),
    ],
)
async def test_what_is_not_whole_or_leads_out_of_the_folder_is_refused(
    tmp_path: Path, content: bytes, told: str
) -> None:
    folder = tmp_path / "into"
    folder.mkdir()
    path = f"{RUN}/sampler_weights/RUN-a1-step-000001/archive"
    async with serving({path: leads_to("/signed"), "/signed": sends(content)}) as (server, _):
        with pytest.raises(ServerError, match=told):
            await snapshots(server).download(URI, folder)
    assert [file.name for file in tmp_path.iterdir()] == ["into"]


async def test_a_download_that_fails_says_so(tmp_path: Path) -> None:
    path = f"{RUN}/sampler_weights/RUN-a1-step-000001/archive"
    async with serving({}) as (server, _):
        with pytest.raises(ServerError, match="does not hand out"):
            await snapshots(server).download(URI, tmp_path)
    gone: dict[str, Handler] = {path: leads_to("/signed")}
    async with serving(gone) as (server, _):
        with pytest.raises(ServerError, match=r"the download .* 404"):
            await snapshots(server).download(URI, tmp_path)
    async with serving({path: leads_to("file:///etc/passwd")}) as (server, _):
        with pytest.raises(ServerError, match="not HTTP"):
            await snapshots(server).download(URI, tmp_path)
    assert list(tmp_path.iterdir()) == []


ARCHIVE = f"{RUN}/sampler_weights/RUN-a1-step-000001/archive"


@pytest.mark.parametrize(
    "link",
    ["file:///etc/passwd", "ftp://x/y", "//", "http://", "http://[::1", "http://[x]/", "data:,x",
     "javascript:1", "gopher://x", "http:///x"],
)  # fmt: skip
async def test_a_link_that_leads_nowhere(tmp_path: Path, link: str) -> None:
    async with serving({ARCHIVE: leads_to(link)}) as (server, _):
        with pytest.raises(ServerError) as caught:
            await snapshots(server).download(URI, tmp_path)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def sparse() -> bytes:
    """A file of 8 TiB of nothing, in 1.5 KiB (GNU's old form of a sparse file)."""
    entry = tarfile.TarInfo("model.safetensors")
    entry.type, entry.size = tarfile.GNUTYPE_SPARSE, 512
    head = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    head[386:410] = b"%011o\0%011o\0" % (0, 512)
    head[483:495] = b"\x80" + (2**43).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(512) + bytes(1024)


async def test_an_archive_that_unpacks_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtrl_cli.servers.tinker.snapshots._SMALL", 2**16)
    bomb = packed(("model.safetensors", bytes(2**22)), mode="w:gz")
    assert len(bomb) < 2**13
    for content, told in ((bomb, "more than it can mean"), (sparse(), "refused")):
        async with serving({ARCHIVE: leads_to("/s"), "/s": sends(content)}) as (server, _):
            with pytest.raises(ServerError, match=told):
                await snapshots(server).download(URI, tmp_path)


async def test_words_without_end_are_not_read_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the server, and from where its link leads; the key is in none of them."""
    monkeypatch.setattr("mtrl_cli.servers.tinker.snapshots._LARGEST_REPLY", 2**16)
    monkeypatch.setattr("mtrl_cli.servers.tinker.snapshots._ARCHIVE_SECONDS", 0.5)

    def endless(status: int) -> Handler:
        def handle(request: web.Request) -> web.Response:
            return web.Response(status=status, body=KEY.encode() * 20_000)

        return handle

    routes = {ARCHIVE: leads_to("/s"), "/s": endless(404)}
    for table in (routes, {ARCHIVE: endless(400)}, {ARCHIVE: endless(500)}):
        async with serving(table) as (server, _):
            with pytest.raises(ServerError, match=r"larger than 0 MiB|in time") as caught:
                await snapshots(server).download(URI, tmp_path)
            assert KEY not in str(caught.value)


async def test_a_digest_and_a_time_are_one_line() -> None:
    entry = {"tinker_path": URI, "time": "now\n\x1b[2J", "size_bytes": True}
    info = {"/api/v1/weights_info": lambda _: web.json_response({"digest": "x" * 9999 + "\n"})}
    async with serving({RUN: listed(entry), **info}) as (server, _):
        facts = await snapshots(server).facts(URI)
    assert facts is not None
    assert (facts.time, facts.size) == ("now \\x1b[2J", None)
    assert facts.digest is not None
    assert len(facts.digest) == 200
