"""Clients of the scripted Twinkle server, and what they are asked to do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from mtrl_cli.servers.interface import AdamSpec, Datum, LossSpec, ModelSpec
from mtrl_cli.servers.twinkle.service import TwinkleService
from mtrl_cli.servers.twinkle.transport import TwinkleAddress
from mtrl_cli.testing.twinkle_server import ScriptedTwinkleServer

from .calls import datum, turn

__all__ = ["ADAM", "LOSS", "SPEC", "Trained", "connected", "datum", "turn"]

ADAM = AdamSpec(0.01, 0.9, 0.95, 1e-8, 0.0, 1.0)
LOSS = LossSpec("ppo", {})
SPEC = ModelSpec("scripted", 8, 32.0, 7, LOSS, ADAM)
SESSION = "session_" + "0" * 31 + "1"


@asynccontextmanager
async def connected(
    server: ScriptedTwinkleServer | str, *, key: str | None = "secret", **options: Any
) -> AsyncIterator[TwinkleService]:
    url = server if isinstance(server, str) else server.url
    options = {"sample_timeout": 5.0, "training_timeout": 5.0, **options}
    client = TwinkleService(TwinkleAddress.of(url, key), "scripted", **options)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


class Trained:
    """A client with an adapter; every call is executed at once."""

    def __init__(self, client: TwinkleService) -> None:
        self.client = client
        self.accepted: list[str] = []
        self.model = ""
        self.seq = 0

    @staticmethod
    async def on(client: TwinkleService, **changes: Any) -> "Trained":
        trained = Trained(client)
        trained.model = await trained.run(client.create_model(replace(SPEC, **changes)))
        return trained

    async def run(self, call: Any) -> Any:
        return await self.client.execute(call, self.accepted.append)

    async def train(self, *data: Datum, loss: LossSpec = LOSS) -> Any:
        self.seq += 1
        call = self.client.forward_backward(self.model, self.seq, data or [datum()], loss)
        return await self.run(call)

    async def step(self, adam: AdamSpec = ADAM) -> Any:
        self.seq += 1
        return await self.run(self.client.optim_step(self.model, self.seq, adam))

    async def publish(self, name: str = "run/a1/step-000001") -> str:
        self.seq += 1
        uri: str = await self.run(self.client.publish(self.model, self.seq, name))
        return uri

    async def save(self, name: str = "run/a1/step-000001") -> str:
        self.seq += 1
        uri: str = await self.run(self.client.save_state(self.model, self.seq, name))
        return uri

    async def load(self, uri: str) -> None:
        self.seq += 1
        await self.run(self.client.load_state(self.model, self.seq, uri))

    async def unload(self) -> None:
        await self.run(self.client.unload_model(self.model))


def trained_datum(tokens: list[int], sampled: list[int], advantage: float) -> Datum:
    """A datum of ``tokens`` of which those at the places ``sampled`` were sampled."""
    count = len(tokens) - 1
    logprobs, advantages = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for place in sampled:
        logprobs[place - 1] = -place / 64
        advantages[place - 1] = advantage
    ids = np.array(tokens, np.int32)
    return Datum(ids[:-1], ids[1:], logprobs, advantages)
