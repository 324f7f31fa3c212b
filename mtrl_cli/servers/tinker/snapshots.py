"""Snapshots on a Tinker server: looked up in its checkpoint list, and downloaded.

Both only read, on connections of their own: no session is needed, and a client that is connected
is not disturbed. A download is asked for at ``…/archive``, which answers with a link; the link
may lead to another host, so the API key does not go with it. What arrives is a tar file: only its
regular files are taken, and none may leave the folder.
"""

import asyncio
import lzma
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

from mtrl_cli.servers.address import Address, no_cookies, proxy_for, unfollowed
from mtrl_cli.servers.budget import Budget
from mtrl_cli.servers.errors import ServerError, Verdict, judge_exception, judge_reply
from mtrl_cli.servers.interface import CannotList, SnapshotFacts
from mtrl_cli.servers.keys import HEADER, usable_token
from mtrl_cli.servers.tinker import codec
from mtrl_cli.servers.transport import CONNECT_SECONDS, PREFIX
from mtrl_cli.servers.unpacking import gathered
from mtrl_cli.servers.wording import one_line, without_secret

if TYPE_CHECKING:
    import httpx

# SkyRL tx leaves the kind out of the URIs that it returns, and has it in those that it lists.
_URI = re.compile(r"([a-z][a-z0-9+.-]*://([^/\s]+))/(?:(sampler_weights|weights)/)?(\S+)")
_LIST_SECONDS = 20.0
_ARCHIVE_SECONDS = 300.0  # a server may pack the archive when it is first asked for
_READ_SECONDS = 60.0
_DOWNLOAD_SECONDS = 3600.0  # in all: a reply may also come a byte a minute
_LARGEST_REPLY = 2**24
_PACKED_AT_MOST = 64
"""Times that an archive may be longer than what was sent of it; weights hardly pack at all."""
_SMALL = 2**30
"""Bytes that need no such reason."""
_NO_ROUTE = (404, 405)
_SPENT = 1_000
"""Attempts: reading again harms nobody, so the seconds decide."""


class TinkerSnapshots:
    """Reads the checkpoints of one server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._token: str | None = None

    async def facts(self, uri: str) -> SnapshotFacts | None:
        """What the server's list says of a snapshot; None when it is not there.

        Raises:
            CannotList: the server has no such list, or ``uri`` could not be in it.
            ServerError: it cannot be reached, or refuses.
        """
        model, _, _ = _parts(uri)
        async with self._client() as client:
            await self._show_token(client)
            listed = await self._get(client, f"training_runs/{quote(model, safe='')}/checkpoints")
            if listed is None:
                if await self._get(client, "training_runs?limit=1") is None:
                    raise CannotList(f"{self._address.url} has no list of checkpoints")
                return None
            entry = _entry(listed, uri)
            if entry is None:
                return None
            return SnapshotFacts(
                uri=uri,
                time=_text(entry.get("time")),
                size=size if type(size := entry.get("size_bytes")) is int else None,
                digest=await self._digest(client, uri),
            )

    async def download(self, uri: str, folder: Path) -> None:
        """Put the files of a snapshot into ``folder``, which exists and is empty.

        Raises:
            ServerError: the server does not hand it out, or what arrives is not whole.
        """
        with tempfile.TemporaryFile(dir=folder) as packed:
            async with self._client() as client:
                await self._show_token(client)
                link = await self._archive(client, uri)
            await self._fetch(link, packed)
            await asyncio.to_thread(_unpack, packed, folder, self._address.url)

    # --- inside -----------------------------------------------------------------------------

    def _client(self) -> "httpx.AsyncClient":
        import httpx

        return httpx.AsyncClient(
            base_url=self._address.url + PREFIX,
            headers=self._address.headers,
            timeout=httpx.Timeout(_LIST_SECONDS, connect=CONNECT_SECONDS),
            cookies=no_cookies(),
            event_hooks={"response": [unfollowed]},
            proxy=proxy_for(self._address.url),
            trust_env=False,
        )

    async def _show_token(self, client: "httpx.AsyncClient") -> None:
        """Show a token in place of the user's key, where the server wants that (see `keys`)."""
        config = await self._posted(client, "client/config", {"sdk_version": "0.38.0"})
        if config is None or config.get("pjwt_auth_enabled") is not True:
            return
        given = await self._posted(client, "auth/token", {})
        token = None if given is None else usable_token(given.get("jwt"))
        if token is None:
            raise ServerError(f"{self._address.url} gave no token for the API key")
        self._token = client.headers[HEADER] = token

    async def _posted(
        self, client: "httpx.AsyncClient", path: str, body: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """One call that changes nothing; None where the server has no such route."""
        reply = await self._once(client, "POST", path, _LIST_SECONDS, body)
        if isinstance(reply, Verdict):
            raise self._failed(f"POST {path}", reply)
        return self._object(reply, f"POST {path}")

    async def _once(
        self,
        client: "httpx.AsyncClient",
        method: str,
        path: str,
        seconds: float,
        body: Mapping[str, Any] | None = None,
    ) -> "_Answer | Verdict":
        """One request and all of its reply, or why there is none."""
        import httpx

        try:
            async with (
                asyncio.timeout(seconds),
                client.stream(method, path, json=body) as reply,
            ):
                content = await gathered(reply.aiter_bytes(), _LARGEST_REPLY)
                link = reply.extensions.get("location") if reply.is_redirect else None
                wait = reply.headers.get("Retry-After")
                return _Answer(reply.status_code, content, wait, str(reply.url), link)
        except (httpx.HTTPError, OSError, ValueError) as error:
            return judge_exception(error)

    async def _get(self, client: "httpx.AsyncClient", path: str) -> Mapping[str, Any] | None:
        """One reading call; None for 404."""
        reply = await self._asked(client, path, _LIST_SECONDS)
        return self._object(reply, f"GET {path}")

    def _object(self, reply: "_Answer", what: str) -> Mapping[str, Any] | None:
        """What it says; None for 404."""
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise self._failed(what, judge_reply(reply.status, reply.body))
        try:
            return codec.parse(reply.body)
        except codec.MalformedReply as error:
            raise self._failed(what, Verdict("unknown", str(error))) from None

    async def _asked(self, client: "httpx.AsyncClient", path: str, seconds: float) -> "_Answer":
        """The reply, whatever it is, once what is transient has passed."""
        budget = Budget(seconds, _SPENT)
        while True:
            reply = await self._once(client, "GET", path, budget.left)
            if isinstance(reply, Verdict):
                verdict = reply
            else:
                verdict = judge_reply(reply.status, reply.body, retry_after=reply.retry_after)
                if reply.status < 400 or verdict.outcome == "permanent":
                    return reply
            if verdict.outcome == "permanent":
                raise self._failed(f"GET {path}", verdict)
            if (pause := budget.pause(verdict)) is None:
                raise self._failed(f"GET {path}", verdict)
            await asyncio.sleep(pause)

    async def _digest(self, client: "httpx.AsyncClient", uri: str) -> str | None:
        """The digest that some servers tell; one that does not is no failure."""
        reply = await self._once(
            client, "POST", "weights_info", _LIST_SECONDS, {"tinker_path": uri}
        )
        if isinstance(reply, Verdict):
            return None
        try:
            return _text(codec.parse(reply.body).get("digest"))
        except codec.MalformedReply:
            return None

    async def _archive(self, client: "httpx.AsyncClient", uri: str) -> str:
        """The link under which the archive can be downloaded."""
        model, kind, name = _parts(uri)
        run = f"training_runs/{quote(model, safe='')}/checkpoints"
        # The SDK names the kind in the path; SkyRL tx knows the name alone.
        paths = [f"{run}/{kind}/{quote(name)}/archive"]
        if "/" not in name:
            paths.append(f"{run}/{quote(name)}/archive")
        for path in paths:
            reply = await self._asked(client, path, _ARCHIVE_SECONDS)
            if reply.location is not None:
                return self._link(reply.url, reply.location)
            if reply.status >= 400 and reply.status not in _NO_ROUTE:
                raise self._failed(f"the archive of {uri}", judge_reply(reply.status, reply.body))
        told = f"HTTP {reply.status}, and no link"
        raise ServerError(f"{self._address.url} does not hand out {uri} ({told})")

    def _link(self, asked: str, location: str) -> str:
        import httpx

        try:
            link = urljoin(asked, location)
            if urlsplit(link).scheme in ("http", "https") and httpx.URL(link).host:
                return link
        except (ValueError, httpx.InvalidURL):
            pass
        raise ServerError(f"{self._address.url} names a download that is not HTTP")

    async def _fetch(self, link: str, into: IO[bytes]) -> None:
        import httpx

        timeout = httpx.Timeout(_READ_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with (
                asyncio.timeout(_DOWNLOAD_SECONDS),
                httpx.AsyncClient(
                    timeout=timeout,
                    cookies=no_cookies(),
                    follow_redirects=True,
                    proxy=proxy_for(link),
                    trust_env=False,
                ) as client,
                client.stream("GET", link) as reply,
            ):
                if reply.status_code != 200:
                    verdict = judge_reply(
                        reply.status_code, await gathered(reply.aiter_bytes(), _LARGEST_REPLY)
                    )
                    raise self._failed("the download", verdict)
                async for piece in reply.aiter_bytes():
                    into.write(piece)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise self._failed("the download", judge_exception(error)) from None

    def _failed(self, what: str, verdict: Verdict) -> ServerError:
        told = f"{what} at {self._address.url} failed: {verdict.says}"
        return ServerError(without_secret(without_secret(told, self._address.api_key), self._token))


@dataclass(frozen=True, slots=True)
class _Answer:
    """A reply. ``location``: where it leads, as it says itself."""

    status: int
    body: bytes
    retry_after: str | None
    url: str
    location: str | None


def _parts(uri: str) -> tuple[str, str, str]:
    """Model, kind and name."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise CannotList(f"{uri!r:.120} names no checkpoint: tinker://MODEL/sampler_weights/NAME")
    return match[2], match[3] or "sampler_weights", match[4]


def _entry(listed: Mapping[str, Any], uri: str) -> Mapping[str, Any] | None:
    entries = listed.get("checkpoints")
    for entry in entries if isinstance(entries, list) else ():
        path = entry.get("tinker_path") if isinstance(entry, dict) else None
        if isinstance(path, str) and _URI.fullmatch(path) and _parts(path) == _parts(uri):
            assert isinstance(entry, dict)
            return entry
    return None


def _text(value: Any) -> str | None:
    return one_line(value, 200) if isinstance(value, str) else None


def _unpack(packed: IO[bytes], folder: Path, url: str) -> None:
    room = max(_SMALL, _PACKED_AT_MOST * packed.seek(0, 2))
    packed.seek(0)
    try:
        with tarfile.open(fileobj=packed, mode="r:*") as tar:
            for entry in tar:
                if entry.isdir():
                    continue
                path = PurePosixPath(entry.name)
                if (
                    not entry.isreg()
                    or entry.issparse()
                    or path.is_absolute()
                    or ".." in path.parts
                ):
                    raise ServerError(f"the archive from {url} holds {entry.name!r:.100}: refused")
                room -= entry.size
                if room < 0:
                    raise ServerError(f"the archive from {url} unpacks to more than it can mean")
                content = tar.extractfile(entry)
                assert content is not None
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        told = one_line(str(error), 200)
        raise ServerError(f"the archive from {url} cannot be unpacked: {told}") from None
    _check_whole(folder, url)


def _check_whole(folder: Path, url: str) -> None:
    """The weights are there, and each file of them is as long as its own head says."""
    from safetensors import SafetensorError, safe_open

    files = list(folder.rglob("*.safetensors"))
    if not files:
        raise ServerError(f"the archive from {url} holds no weights in safetensors")
    for path in files:
        try:
            with safe_open(path, framework="numpy") as tensors:
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise ServerError(
                f"{one_line(path.name, 100)} from {url} is damaged: {one_line(str(error), 200)}"
            ) from None
