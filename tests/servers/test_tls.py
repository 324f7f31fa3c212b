"""A server behind a certificate that nobody knows: one line says what to set, and it works then."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mtrl_cli.envs.interface import Deadlines
from mtrl_cli.envs.openenv_remote import RemoteFactory
from mtrl_cli.errors import MtrlError
from mtrl_cli.servers.address import Address
from mtrl_cli.servers.transport import NoReply, Transport
from tests.envs.test_wire import Words

from .raw import Raw, raw, reply

PEM = Path(__file__).with_name("self_signed.pem")
"""A key and its certificate for localhost and 127.0.0.1, valid until 2120."""

SAYS = (
    "the server's TLS certificate is not trusted (self-signed certificate);"
    " set SSL_CERT_FILE to a file with the certificate that signed it"
)


@asynccontextmanager
async def behind_tls() -> AsyncIterator[Raw]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    async with raw(context) as server:
        server.answer = reply(b"{}")
        yield server


async def call(url: str, door: str) -> str:
    """The reply's body, or what was said of the failure."""
    client = Transport(Address.of(url, "tml-key"), 4)
    await client.open()
    try:
        if door == "pooled":
            answer = await client.pooled("asample", b"{}", 5.0)
        else:
            answer = await client.single("POST", "optim_step", b"{}", 5.0)
        return answer.body.decode()
    except NoReply as error:
        return error.verdict.says
    finally:
        await client.close()


@pytest.mark.parametrize("door", ["pooled", "single"])
async def test_a_training_service(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with behind_tls() as server:
        assert await call(server.url, door) == SAYS
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        assert await call(server.url, door) == "{}"


async def test_an_environments_server() -> None:
    async with behind_tls() as server:
        factory = RemoteFactory(server.url, Words(), deadlines=Deadlines(5.0, 5.0, 5.0, 5.0))
        with pytest.raises(MtrlError) as untrusted:
            await factory.check()
        assert str(untrusted.value) == f"env.base_url: {server.url} cannot be reached: {SAYS}"
