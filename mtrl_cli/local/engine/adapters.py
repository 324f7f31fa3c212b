"""What of a model is trained: all matrices, or low-rank adapters over frozen ones.

LoRA (Hu et al. 2021): W' = W + s A B with A [rows, rank] drawn from U(-b, b), b = sqrt(3 / rows)
(Kaiming with gain 1), B [rank, columns] zero, s = alpha / rank. As the model is small, W' is
formed and differentiated like any matrix, and the chain rule gives dA = s dW' B^T and
dB = s A^T dW'. The three attention inputs are one matrix (``qkv``) and share one A.
"""

import numpy as np

from mtrl_cli.local.engine.types import Array, Lora, Shape, Weights
from mtrl_cli.local.engine.weights import shapes


def targets(shape: Shape, lora: Lora) -> list[str]:
    """Names of the matrices that ``lora`` adapts."""
    wanted = {
        "qkv": lora.train_attn, "out": lora.train_attn,
        "up": lora.train_mlp, "down": lora.train_mlp,
        "embed": lora.train_unembed,
    }  # fmt: skip
    return [name for name in shapes(shape) if wanted[name.rsplit(".", 1)[-1]]]


def initial(shape: Shape, lora: Lora, dtype: np.dtype) -> dict[str, Array]:
    """Parameters ``NAME.A`` and ``NAME.B`` of every adapted matrix."""
    rng = np.random.default_rng(lora.seed)
    made: dict[str, Array] = {}
    for name in targets(shape, lora):
        rows, columns = shapes(shape)[name]
        bound = (3 / rows) ** 0.5
        made[f"{name}.A"] = rng.uniform(-bound, bound, (rows, lora.rank)).astype(dtype)
        made[f"{name}.B"] = np.zeros((lora.rank, columns), dtype)
    return made


def merged(base: Weights, parameters: Weights, lora: Lora | None) -> dict[str, Array]:
    """The matrices the model runs on: the parameters themselves, or base plus adapters."""
    if lora is None:
        return dict(parameters)
    scale = lora.alpha / lora.rank
    return {
        name: value + scale * (parameters[f"{name}.A"] @ parameters[f"{name}.B"])
        if f"{name}.A" in parameters
        else value
        for name, value in base.items()
    }


def parameter_gradients(
    gradients: dict[str, Array], parameters: Weights, lora: Lora | None
) -> dict[str, Array]:
    """Gradients of the parameters from those of the merged matrices."""
    if lora is None:
        return gradients
    scale = lora.alpha / lora.rank
    return {
        name: scale * (gradients[name[:-2]] @ parameters[f"{name[:-2]}.B"].T)
        if name.endswith(".A")
        else scale * (parameters[f"{name[:-2]}.A"].T @ gradients[name[:-2]])
        for name in parameters
    }
