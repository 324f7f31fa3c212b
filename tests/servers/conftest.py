"""Clients of the scripted server, closed at the end of the test."""

from dataclasses import replace

import pytest

from mtrl_cli.servers.address import Address
from mtrl_cli.servers.interface import Capabilities
from mtrl_cli.servers.tinker.formats import Formats
from mtrl_cli.servers.tinker.service import TinkerService
from mtrl_cli.testing.policy_server import ScriptedPolicyServer

CAPABILITIES = Capabilities(
    snapshots="immutable",
    dedupes=False,
    policy_logprobs=True,
    reports_weights=True,
    full_training=True,
)


@pytest.fixture
async def connect(monkeypatch):
    """``await connect(server, dedupes=…, **options)`` gives a connected client."""
    # Pauses keep their shape and lose their length.
    monkeypatch.setattr("mtrl_cli.servers.budget._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("mtrl_cli.servers.budget._LONGEST_PAUSE", 0.1)
    clients = []

    async def make(
        server: ScriptedPolicyServer | str,
        *,
        dedupes=False,
        key=None,
        model="scripted",
        codec="json",
        **options,
    ):
        url = server if isinstance(server, str) else server.url
        options = {
            "sample_timeout": 5.0,
            "training_timeout": 5.0,
            "wide": True,
            "formats": Formats.of(codec),
            **options,
        }
        client = TinkerService(
            Address.of(url, key), model, replace(CAPABILITIES, dedupes=dedupes), **options
        )
        clients.append(client)
        await client.connect()
        return client

    yield make
    for client in clients:
        await client.close()
