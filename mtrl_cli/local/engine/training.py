"""One tenant's trainable model: accumulate gradients, step Adam, hand out snapshots.

Adam (Kingma & Ba 2015) with bias correction and decoupled weight decay (Loshchilov & Hutter
2019): m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
p -= lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay * p).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mtrl_cli.local.engine import adapters, gradient
from mtrl_cli.local.engine.types import (
    AdamParams,
    Array,
    Datum,
    Lora,
    LossName,
    LossOutput,
    Shape,
    Weights,
)
from mtrl_cli.local.engine.weights import check, frozen


class TrainableModel:
    """A model under training. ``lora`` None trains every matrix. Not thread-safe: one caller.

    A failed call (ValueError on bad data) leaves parameters and gradients as they were.
    """

    def __init__(self, shape: Shape, base: Weights, lora: Lora | None) -> None:
        check(shape, base)
        self.shape, self.lora = shape, lora
        self._base = frozen(base.items())
        dtype = base["embed"].dtype
        fresh = self._base if lora is None else adapters.initial(shape, lora, dtype)
        self._parameters = {name: value.copy() for name, value in fresh.items()}
        self._momentum = {name: np.zeros_like(value) for name, value in fresh.items()}
        self._square = {name: np.zeros_like(value) for name, value in fresh.items()}
        self._steps = 0
        self._accumulated: dict[str, Array] | None = None
        self._merged = adapters.merged(self._base, self._parameters, lora)

    def forward(self, data: Sequence[Datum]) -> list[Array]:
        """Logprob of ``target_tokens`` at each position: float32 [T] a datum."""
        return gradient.logprobs(self.shape, self._merged, data)

    def forward_backward(
        self, data: Sequence[Datum], loss: LossName, config: Mapping[str, float]
    ) -> LossOutput:
        """Add the gradients of the summed loss to those already accumulated.

        Losses are sums over tokens and data (hosted Tinker's convention; see ``losses``).
        ``config`` may set ``clip_low_threshold`` and ``clip_high_threshold`` (ppo, cispo).
        """
        value, logprobs, gradients = gradient.loss_and_gradients(
            self.shape, self._merged, data, loss, config
        )
        if self._accumulated is None:
            self._accumulated = gradients
        else:
            for name, part in gradients.items():
                self._accumulated[name] += part
        tokens = float(sum(len(row) for row in logprobs))
        return LossOutput(value, logprobs, {"loss:sum": value, "tokens:sum": tokens})

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """One Adam step on the accumulated gradients, which it consumes.

        Without any, the gradient is zero (the momentum still moves the parameters). Metrics:
        ``grad_norm`` (L2, before clipping), ``learning_rate``, ``step``.
        """
        whole, self._accumulated = self._accumulated, None
        if whole is None:
            whole = {name: np.zeros_like(value) for name, value in self._base.items()}
        gradients = adapters.parameter_gradients(whole, self._parameters, self.lora)
        norm = sum(float(np.vdot(g, g)) for g in gradients.values()) ** 0.5
        clip = adam.grad_clip_norm
        scale = clip / norm if 0 < clip < norm else 1.0
        self._steps += 1
        unbias1 = 1 - adam.beta1**self._steps
        unbias2 = 1 - adam.beta2**self._steps
        for name, parameter in self._parameters.items():
            g = gradients[name] * scale
            m, v = self._momentum[name], self._square[name]
            m += (1 - adam.beta1) * (g - m)
            v += (1 - adam.beta2) * (g * g - v)
            move = (m / unbias1) / (np.sqrt(v / unbias2) + adam.eps)
            move += adam.weight_decay * parameter
            parameter -= adam.learning_rate * move
        self._merged = adapters.merged(self._base, self._parameters, self.lora)
        return {
            "grad_norm": norm,
            "learning_rate": adam.learning_rate,
            "step": float(self._steps),
        }

    def snapshot(self) -> Weights:
        """The weights as they are now, adapters merged: an immutable copy for the sampler."""
        return frozen(self._merged.items())

    def state(self, optimizer: bool) -> dict[str, Array]:
        """Copies of all parameters, and with ``optimizer`` of Adam's moments and step count.

        Gradients accumulated but not stepped are not part of a state.
        """
        groups = {"parameter": self._parameters}
        if optimizer:
            groups |= {"momentum": self._momentum, "square": self._square}
        kept = {
            f"{group}/{name}": value.copy()
            for group, values in groups.items()
            for name, value in values.items()
        }
        if optimizer:
            kept["steps"] = np.array(self._steps)
        return kept

    def load_state(self, state: Mapping[str, Array], optimizer: bool) -> None:
        """Take over a state; without ``optimizer`` Adam begins afresh. Drops gradients.

        ValueError if the state is of another shape or rank, or lacks the optimizer.
        """
        groups = {"parameter": self._parameters}
        if optimizer:
            groups |= {"momentum": self._momentum, "square": self._square}
        for group, values in groups.items():
            for name, value in values.items():
                key = f"{group}/{name}"
                if key not in state:
                    raise ValueError(f"the state has no {key}: another model or no optimizer")
                if state[key].shape != value.shape:
                    raise ValueError(f"{key} is {state[key].shape}, the model's {value.shape}")
        for group, values in groups.items():
            for name, value in values.items():
                value[...] = state[f"{group}/{name}"]
        if optimizer:
            self._steps = int(state["steps"])
        else:
            self._steps = 0
            for value in (*self._momentum.values(), *self._square.values()):
                value[...] = 0
        self._accumulated = None
        self._merged = adapters.merged(self._base, self._parameters, self.lora)
