"""What a training service is taken to do where its protocol has no word for it.

Two properties decide how a run is planned. *Snapshots*: what an old policy URI is sampled with
after the model was trained on. *Dedupes*: whether a training call sent twice is executed once,
which decides whether a call of unknown outcome may be sent again.

The embedded server and hosted Tinker are known. For any other server the cautious value stands,
because a wrong guess would train on tokens of another policy, or step twice. ``server.snapshots``
and ``server.dedupes`` say better.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from mtrl_cli.config.schema import ServerConfig, ServerKind, Snapshots

_HOSTED = "thinkingmachines.dev"


@dataclass(frozen=True, slots=True)
class Assumed:
    snapshots: Snapshots
    dedupes: bool


def assumed(config: ServerConfig) -> Assumed:
    """What the configuration says, else what mtrl knows of the server."""
    known = _known(config)
    return Assumed(
        snapshots=known.snapshots if config.snapshots is None else config.snapshots,
        dedupes=known.dedupes if config.dedupes is None else config.dedupes,
    )


def _known(config: ServerConfig) -> Assumed:
    if config.kind is ServerKind.local:
        return Assumed(Snapshots.immutable, dedupes=True)
    if _hosted(config.base_url or ""):
        return Assumed(Snapshots.immutable, dedupes=False)
    # SkyRL tx samples an old snapshot with the live weights, and some ignore sequence ids.
    return Assumed(Snapshots.live, dedupes=False)


def _hosted(url: str) -> bool:
    try:
        host = urlsplit(url.strip()).hostname or ""
    except ValueError:
        return False  # not an address, which is told when it is used
    return host == _HOSTED or host.endswith("." + _HOSTED)
