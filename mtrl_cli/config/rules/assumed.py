"""What a training service is taken to do where its protocol has no word for it.

Five properties decide how a run is planned. *Snapshots*: what an old policy URI is sampled with
after the model was trained on. *Dedupes*: whether a training call sent twice is executed once,
which decides whether a call of unknown outcome may be sent again. *Format*: what bodies with
arrays are written in; a server of which it is not known tells by refusing the first. *Loss
reduction*: how the server makes one loss of a step's tokens, which the weights that mtrl sends
make up for. *Leaks gradients*: whether gradients that an unloaded model was left with reach the
next model in its place, which decides whether a run that broke off between them can be resumed.

The embedded server, Twinkle and hosted Tinker are known. For any other server the cautious value
stands, because a wrong guess would train on tokens of another policy, step twice, or weigh calls
wrongly: a reduction that is not known is None, and a step is then one call. ``server.snapshots``,
``server.dedupes``, ``server.loss_reduction`` and ``server.leaks_gradients`` say better.
"""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from mtrl_cli.config.schema import LossReduction, ServerConfig, ServerKind, Snapshots

EMBEDDED_WINDOW = {"mtrl-tiny": 2048}
"""Tokens that the embedded server's own models take, so that a configuration beyond them is
refused before anything is begun. A model that is not here is asked for when it is served."""

_HOSTED = "thinkingmachines.dev"


@dataclass(frozen=True, slots=True)
class Assumed:
    snapshots: Snapshots
    dedupes: bool
    format: Literal["json", "protobuf"] | None
    """Of bodies that hold arrays; None: it is found out."""
    loss_reduction: LossReduction | None
    leaks_gradients: bool = False


def assumed(config: ServerConfig) -> Assumed:
    """What the configuration says, else what mtrl knows of the server."""
    known = _known(config)
    return Assumed(
        snapshots=known.snapshots if config.snapshots is None else config.snapshots,
        dedupes=known.dedupes if config.dedupes is None else config.dedupes,
        format=known.format,
        loss_reduction=config.loss_reduction or known.loss_reduction,
        leaks_gradients=(
            known.leaks_gradients if config.leaks_gradients is None else config.leaks_gradients
        ),
    )


def is_known(config: ServerConfig) -> bool:
    """Whether mtrl knows this server, and need not assume the worst of it."""
    return config.kind is not ServerKind.tinker or _hosted(config.base_url or "")


def _known(config: ServerConfig) -> Assumed:
    total = LossReduction.sum
    if config.kind is ServerKind.local:
        return Assumed(Snapshots.immutable, dedupes=True, format="protobuf", loss_reduction=total)
    if config.kind is ServerKind.twinkle:
        mean = LossReduction.call_mean
        return Assumed(Snapshots.newest_only, dedupes=False, format="json", loss_reduction=mean)
    if _hosted(config.base_url or ""):
        return Assumed(Snapshots.immutable, dedupes=False, format="protobuf", loss_reduction=total)
    # SkyRL tx samples an old snapshot with the live weights and keeps gradients in a model's slot;
    # some servers ignore sequence ids.
    return Assumed(
        Snapshots.live, dedupes=False, format=None, loss_reduction=None, leaks_gradients=True
    )


def _hosted(url: str) -> bool:
    try:
        host = urlsplit(url.strip()).hostname or ""
    except ValueError:
        return False  # not an address, which is told when it is used
    return host == _HOSTED or host.endswith("." + _HOSTED)
