"""What the hosted service asks of a client beyond the protocol that all servers share.

The user's key buys a token (a JWT) at ``auth/token`` and is good for nothing else but the
configuration; a token ends with its life or when a test revokes it. Sampling requests can be
cancelled. Rates and bills are faults (`faults.status`), and not told here.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CHALLENGE = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


@dataclass
class Hosted:
    """The options of a hosted server; give one to `ScriptedPolicyServer`.

    ``token_seconds`` is the life of a token; None asks for the user's key everywhere.
    """

    token_seconds: float | None = 3600.0
    cancels: bool = True
    tokens: list[str] = field(default_factory=list)
    """Every token given, the last one last."""
    revoked: set[str] = field(default_factory=set)
    cancelled: list[str] = field(default_factory=list)
    """Request ids that a client cancelled."""

    def revoke(self) -> None:
        """The last token is not valid any more."""
        self.revoked.add(self.tokens[-1])

    def wants(self, endpoint: str, shown: str | None, key: str | None) -> Mapping[str, str] | None:
        """The headers of the 401 for a request that shows the wrong key; None lets it in."""
        if self.token_seconds is None or endpoint in ("auth/token", "client/config"):
            return None if key is None or shown == key else {}
        good = shown in self.tokens and shown not in self.revoked and not _ended(shown or "")
        return None if good else _CHALLENGE

    def answer(self, endpoint: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer of a route that only hosted servers have; None is no such route."""
        match endpoint:
            case "client/config":
                return {"pjwt_auth_enabled": self.token_seconds is not None}
            case "client/dynamic_config":
                return {"sample_cancel_enabled": self.cancels, "refresh_interval_sec": 300}
            case "auth/token":
                return {"jwt": self._token()}
            case "cancel_future":
                self.cancelled.append(str(body["request_id"]))
                return {}
        return None

    def _token(self) -> str:
        now = time.time()
        claims = {"iat": now, "exp": now + (self.token_seconds or 0.0), "n": len(self.tokens)}
        parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
        text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in [*parts, b"x"])
        self.tokens.append(text.decode())
        return self.tokens[-1]


def _ended(token: str) -> bool:
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return bool(claims["exp"] < time.time())
