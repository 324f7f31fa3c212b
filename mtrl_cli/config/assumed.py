"""What a training service is taken to do where its protocol has no word for it.

Two properties decide how a run is planned. *Snapshots*: what an old policy URI is sampled with
after the model was trained on. *Dedupes*: whether a training call sent twice is executed once,
which decides whether a call of unknown outcome may be sent again. *Format*: what bodies with
arrays are written in; a server of which it is not known tells by refusing the first.

The embedded server, Twinkle and hosted Tinker are known. For any other server the cautious value
stands, because a wrong guess would train on tokens of another policy, or step twice.
``server.snapshots`` and ``server.dedupes`` say better.
"""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from mtrl_cli.config.schema import ServerConfig, ServerKind, Snapshots

_HOSTED = "thinkingmachines.dev"


@dataclass(frozen=True, slots=True)
class Assumed:
    snapshots: Snapshots
    dedupes: bool
    format: Literal["json", "protobuf"] | None
    """Of bodies that hold arrays; None: it is found out."""


def assumed(config: ServerConfig) -> Assumed:
    """What the configuration says, else what mtrl knows of the server."""
    known = _known(config)
    return Assumed(
        snapshots=known.snapshots if config.snapshots is None else config.snapshots,
        dedupes=known.dedupes if config.dedupes is None else config.dedupes,
        format=known.format,
    )


def _known(config: ServerConfig) -> Assumed:
    if config.kind is ServerKind.local:
        return Assumed(Snapshots.immutable, dedupes=True, format="json")
    if config.kind is ServerKind.twinkle:
        return Assumed(Snapshots.newest_only, dedupes=False, format="json")
    if _hosted(config.base_url or ""):
        return Assumed(Snapshots.immutable, dedupes=False, format="protobuf")
    # SkyRL tx samples an old snapshot with the live weights, and some ignore sequence ids.
    return Assumed(Snapshots.live, dedupes=False, format=None)


def _hosted(url: str) -> bool:
    try:
        host = urlsplit(url.strip()).hostname or ""
    except ValueError:
        return False  # not an address, which is told when it is used
    return host == _HOSTED or host.endswith("." + _HOSTED)
