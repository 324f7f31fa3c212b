"""The heartbeat of a server-side session.

It beats on a thread of its own, over a connection of its own: an event loop that is busy for
half a minute must not cost the run its models. The first beat goes out at once, because a
session that never beat is never cleaned up by some servers.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mtrl_cli.servers.address import Address, no_cookies, proxy_for
from mtrl_cli.servers.keys import HEADER, Keys
from mtrl_cli.servers.tinker.codec import body_of
from mtrl_cli.servers.transport import PREFIX
from mtrl_cli.servers.wording import one_line

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_TIMEOUT = 10.0
_WARN_AFTER = 60.0


class Heartbeat:
    """Beats every ``period`` seconds from `start` to `stop`, or until the session is gone."""

    def __init__(
        self,
        address: Address,
        session: str,
        period: float = 10.0,
        *,
        path: str = "session_heartbeat",
        headers: Mapping[str, str] | None = None,
        keys: Keys | None = None,
    ) -> None:
        self._address = address
        self._keys = keys or Keys(address.api_key)
        self._path = path
        self._headers = {**address.headers, **(headers or {})}
        self._body = body_of({"session_id": session})
        self._period = period
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mtrl-heartbeat", daemon=True)
        self.beats = 0
        self.lost: str | None = None
        """Why the server no longer knows the session; None while it does."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 1.0) -> None:
        """End it; wait at most ``seconds`` for a beat that is under way. Idempotent."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        import httpx

        url = self._address.url + PREFIX + self._path
        secure = url.startswith("https")
        with httpx.Client(
            headers=self._headers,
            verify=httpx.create_ssl_context() if secure else False,
            timeout=_TIMEOUT,
            proxy=proxy_for(url),
            cookies=no_cookies(),
            trust_env=False,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=2.0),
        ) as client:
            silent_since = time.monotonic()
            while not self._end.is_set():
                says = self._beat(client, url)
                if self.lost is not None:
                    log.warning("the server no longer knows the session: %s", self.lost)
                    return
                if says is None:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since > _WARN_AFTER:
                    log.warning("no heartbeat for %d s: %s", time.monotonic() - silent_since, says)
                    silent_since = time.monotonic()
                self._end.wait(self._period)

    def _beat(self, client: "httpx.Client", url: str) -> str | None:
        """One beat. What went wrong, or None."""
        import httpx

        try:
            shown = {} if self._keys.current is None else {HEADER: self._keys.current}
            # Its body is not read: one that never ends must not hold up the next beat.
            with client.stream("POST", url, content=self._body, headers=shown) as reply:
                status = reply.status_code
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return one_line(self._keys.without(str(error)), 120)
        if status in (404, 410):
            self.lost = f"HTTP {status}"
        elif status < 300:
            self.beats += 1
            return None
        return f"HTTP {status}"
