"""Every training call of the interface, ready to be sent to a scripted server."""

import numpy as np

from mtrl_cli.rollout.ports import SampleRequest, SamplingParams
from mtrl_cli.servers.interface import AdamSpec, Datum, LossSpec, ModelSpec

SPEC = ModelSpec("scripted", 8, 32.0, 7)
ADAM = AdamSpec(0.01, 0.9, 0.95, 1e-8, 0.0, 1.0)
LOSS = LossSpec("ppo", {"clip_low_threshold": 0.8})


def datum() -> Datum:
    return Datum(
        tokens=np.array([1, 336, 201], dtype=np.int32),
        targets=np.array([336, 201, 2], dtype=np.int32),
        logprobs=np.array([0.0, -0.25, -1.1], dtype=np.float32),
        advantages=np.array([0.0, 0.5, 0.5], dtype=np.float32),
    )


def turn(policy: str, tokens=(1, 2, 3), **changes) -> SampleRequest:
    fields = {
        "policy": policy,
        "tokens": list(tokens),
        "max_tokens": 8,
        "stop_ids": (2,),
        "seed": 11,
        "sampling": SamplingParams(),
    }
    return SampleRequest(**{**fields, **changes})


ENDPOINTS = {
    "create_model": "create_model",
    "forward_backward": "forward_backward",
    "optim_step": "optim_step",
    "publish": "save_weights_for_sampler",
    "save_state": "save_weights",
    "load_state": "load_weights",
    "unload_model": "unload_model",
}


class Trained:
    """A client with a model and a saved state, and the call of each kind."""

    def __init__(self, client):
        self.client = client
        self.accepted = []

    async def prepare(self, kind="load_state"):
        """Ready for calls of one kind, or of all: only a load needs a saved state."""
        run = self.client.execute
        self.model = await run(self.client.create_model(SPEC), self.accepted.append)
        if kind == "load_state":
            save = self.client.save_state(self.model, 1, "first")
            self.state = await run(save, self.accepted.append)
        self.accepted.clear()
        return self

    def call(self, kind, seq=2):
        client, model = self.client, self.model
        match kind:
            case "create_model":
                return client.create_model(SPEC)
            case "forward_backward":
                return client.forward_backward(model, seq, [datum()], LOSS)
            case "optim_step":
                return client.optim_step(model, seq, ADAM)
            case "publish":
                return client.publish(model, seq, "run/a1/step-000001")
            case "save_state":
                return client.save_state(model, seq, "run/a1/state")
            case "load_state":
                return client.load_state(model, seq, self.state)
            case "unload_model":
                return client.unload_model(model)

    async def execute(self, kind, seq=2):
        return await self.client.execute(self.call(kind, seq), self.accepted.append)
