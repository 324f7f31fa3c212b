"""From a configuration to the client of its training service."""

from pathlib import Path

from mtrl_cli.config.rules.assumed import assumed
from mtrl_cli.config.schema import ServerConfig, ServerKind
from mtrl_cli.errors import UsageError
from mtrl_cli.runs.places import store_of
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.interface import Capabilities, TrainingService
from mtrl_cli.servers.keys import EMBEDDED_KEY
from mtrl_cli.servers.launch import EmbeddedServer
from mtrl_cli.servers.tinker.formats import Formats
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.servers.twinkle.service import TwinkleService
from mtrl_cli.servers.twinkle.transport import TwinkleAddress


def embedded_for(config: ServerConfig, *, log: Path | None = None) -> EmbeddedServer | None:
    """The embedded server to start for this configuration, not started.

    None where the configuration names a server that runs already.
    """
    if config.kind is not ServerKind.local or config.base_url is not None:
        return None
    return EmbeddedServer(store_of(config.store), base_model=config.base_model, log=log)


def service_for(config: ServerConfig, embedded: EmbeddedServer | None = None) -> TrainingService:
    """The client of the configured service, not connected.

    Args:
        config: the ``server`` group of the experiment.
        embedded: the started server of `embedded_for`; its address and key win.
    """
    local = config.kind is ServerKind.local
    if config.kind is ServerKind.twinkle:
        return _twinkle(config)
    if embedded is not None:
        address = Address.of(embedded.url, embedded.api_key)
    elif config.base_url is not None:
        address = Address.of(config.base_url, config.api_key)
    elif local:
        raise RuntimeError("start the server of embedded_for first")
    else:
        raise UsageError("server.base_url: missing; write the address of the Tinker server")
    return TinkerService(
        address,
        config.base_model,
        capabilities_of(config),
        connections=config.connections,
        sample_timeout=config.sample_timeout,
        training_timeout=config.training_timeout,
        key_variable=EMBEDDED_KEY if local else "TINKER_API_KEY",
        formats=Formats.of(config.codec.value, assumed(config).format),
        wide=local,
        gone=embedded.ended if embedded is not None else None,
    )


def _twinkle(config: ServerConfig) -> TwinkleService:
    if config.base_url is None:
        raise UsageError("server.base_url: missing; write the address of the Twinkle server")
    return TwinkleService(
        TwinkleAddress.of(config.base_url, config.api_key),
        config.base_model,
        backend=config.backend.value,
        template=config.template,
        tokens_per_call=config.tokens_per_call,
        connections=config.connections,
        sample_timeout=config.sample_timeout,
        training_timeout=config.training_timeout,
    )


def capabilities_of(config: ServerConfig) -> Capabilities:
    """What the configured server is known, told or assumed to do."""
    local = config.kind is ServerKind.local
    facts = assumed(config)
    return Capabilities(
        snapshots=facts.snapshots.value,
        dedupes=facts.dedupes,
        leaks_gradients=facts.leaks_gradients,
        policy_logprobs=True,
        reports_weights=local,
        full_training=local,
        context=config.context if local else None,
        loss_reduction=None if facts.loss_reduction is None else facts.loss_reduction.value,
    )
