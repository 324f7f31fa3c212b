"""What a request shows as its key: the user's own, or a token that was exchanged for it.

Some servers take the user's key once, for a short-lived token (a JWT), and the token from then
on. It is renewed at about half its life, before a request that finds it so old, and once when a
server says that it is not valid: such a 401 refuses the request unread, so the request may be
made again, whatever it was.
"""

import asyncio
import base64
import json
import random
import time
from collections.abc import Awaitable, Callable

from mtrl_cli.servers.wording import without_secret

EMBEDDED_KEY = "MTRL_API_KEY"
"""The variable that holds the key to an embedded server."""
HEADER = "X-API-Key"

Exchange = Callable[[], Awaitable[str]]
"""Show the user's key and return a token. Raises `transport.NoReply` with the verdict."""

_LONGEST_TOKEN = 8192
"""What common servers take as a header."""

_UNLIKELY = 16
"""Characters from which on a key's text does not stand anywhere by chance."""

_AGAIN = 60.0
"""Seconds until a renewal that failed is tried again, while the old token lives."""


class Keys:
    """The key of one client. Read from any thread; renewed on the event loop."""

    def __init__(self, own: str | None) -> None:
        self._own = own
        self._token: str | None = None
        self._due = float("inf")
        self._end = float("inf")
        self._exchange: Exchange | None = None
        self._lock = asyncio.Lock()

    @property
    def current(self) -> str | None:
        return self._own if self._token is None else self._token

    @property
    def exchanged(self) -> bool:
        """A token stands for the user's key."""
        return self._exchange is not None

    async def use(self, exchange: Exchange) -> None:
        """Show a token from now on, made by ``exchange``."""
        self._take(await exchange())
        self._exchange = exchange

    async def renew(self, rejected: str | None = None) -> None:
        """Another token, if the present one is old, or is the ``rejected`` one.

        Of several who ask at once, one makes the exchange. A renewal that fails is an error only
        where the old token can no longer be shown.
        """
        if self._exchange is None or not self._is_old(rejected):
            return
        async with self._lock:
            if not self._is_old(rejected):
                return
            self._due = time.monotonic() + _AGAIN
            try:
                self._take(await self._exchange())
            except Exception:
                if rejected is not None or time.monotonic() >= self._end:
                    raise

    def _is_old(self, rejected: str | None) -> bool:
        return self._token == rejected if rejected is not None else time.monotonic() >= self._due

    def _take(self, token: str) -> None:
        life = lifetime(token)
        now = time.monotonic()
        self._token = token
        self._due = now + (_AGAIN if life is None else life * random.uniform(0.45, 0.55))
        self._end = float("inf") if life is None else now + life

    def struck(self, body: bytes, *, said: bool) -> bytes:
        """A reply's body without the keys, as they were shown.

        Args:
            said: it is words, not data. A short key, such as ``test`` or ``1234``, may be data.
        """
        for key in (self._own, self._token):
            if key and len(key) >= (4 if said else _UNLIKELY) and key.encode() in body:
                body = body.replace(key.encode(), b"<key>")
        return body

    def without(self, text: str) -> str:
        """``text`` without the keys, wherever a server repeated them."""
        return without_secret(without_secret(text, self._own), self._token)


def usable_token(value: object) -> str | None:
    """A token as a server gave it; None where it is none that a header can carry."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TOKEN:
        return None
    return value if value.isascii() and value.isprintable() and " " not in value else None


def lifetime(token: str) -> float | None:
    """Seconds from a JWT's ``iat`` to its ``exp``, both the server's; None where it has none."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        life = float(claims["exp"]) - float(claims["iat"])
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    return life if 0 < life < 10**9 else None
