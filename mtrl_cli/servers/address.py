"""Where a service is, the key to it, and the way there."""

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mtrl_cli.errors import UsageError
from mtrl_cli.servers.keys import HEADER

if TYPE_CHECKING:
    from http.cookiejar import CookieJar

    import httpx


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is, and the key to it."""

    url: str
    api_key: str | None

    @staticmethod
    def of(base_url: str, api_key: str | None) -> "Address":
        """Check what the user configured.

        Raises:
            UsageError: it is not an http(s) URL, or the key cannot be a header.
        """
        url = base_url.strip().rstrip("/").removesuffix("/api/v1").rstrip("/")
        if "@" in url.partition("//")[2].partition("/")[0]:
            raise UsageError(
                "server.base_url: it holds a user name or password; give the key as server.api_key"
            )
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if parts.scheme not in ("http", "https") or not host or not _is_host(host, url):
            raise UsageError(
                f"server.base_url: {base_url!r} is not an address; "
                "write http://HOST:PORT or https://HOST"
            )
        if "?" in url or "#" in url:
            raise UsageError(f"server.base_url: {url!r} has a query; write the address alone")
        api_key = api_key.strip(" ") if api_key is not None else None
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise UsageError("server.api_key: the key holds characters no header can carry")
        # A scheme in capitals is the same scheme, and must not pass for another one.
        return Address(f"{parts.scheme}:{url.partition(':')[2]}", api_key or None)

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key is not None:
            headers[HEADER] = self.api_key
        return headers


def _is_host(host: str, url: str) -> bool:
    """Whether every library that will read ``url`` can; each has its own way to choke on a name."""
    if not url.isprintable() or " " in host:
        return False
    try:
        if "[" in url.split("/")[2] or host.replace(".", "").isdecimal():
            ipaddress.ip_address(host.partition("%")[0])
            return True
        if "%" in host:
            return False
        if host.isascii() and "xn--" not in host:
            return all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))
        import idna

        idna.encode(host)
    except ValueError:
        return False
    return True


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for this address; looked up once, not per request."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1" or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


async def unfollowed(reply: "httpx.Response") -> None:
    """A response hook: put a redirect's link among the extensions, as ``location``.

    httpx reads the link of every redirect, also where none is followed, and one that it cannot
    read costs the whole reply.
    """
    if (link := reply.headers.get("Location")) is not None:
        reply.extensions["location"] = link
        del reply.headers["Location"]


def no_cookies() -> "CookieJar":
    """A jar that takes none. A cookie would go out with every later request, and one that no
    header can carry would end them all."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
