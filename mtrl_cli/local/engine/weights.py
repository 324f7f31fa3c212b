"""The model's matrices: names, shapes, first values, and the file they are shipped in.

The transformer has no vectors to train (RMSNorm without gain, no biases), so everything is a
matrix: ``embed`` [vocab, width], which is also the head, and for each layer ``qkv``
[width, 3 * width], ``out`` [width, width], ``up`` [width, 4 * width] and ``down``
[4 * width, width]. Activations are rows: y = x @ W.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mtrl_cli.local.engine.types import Array, Shape, Weights

MLP_RATIO = 4
FILE = "weights.npz"
_SHAPE_KEY = "shape.json"


def shapes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Name to (rows, columns) of every matrix, in the order that all loops follow."""
    d = shape.width
    table = {"embed": (shape.vocab, d)}
    for layer in range(shape.layers):
        table |= {
            f"layer{layer}.qkv": (d, 3 * d),
            f"layer{layer}.out": (d, d),
            f"layer{layer}.up": (d, MLP_RATIO * d),
            f"layer{layer}.down": (MLP_RATIO * d, d),
        }
    return table


def initial(shape: Shape, seed: int) -> dict[str, Array]:
    """Random first values: N(0, 1/rows), the residual outputs (``out``, ``down``) zero.

    ``embed`` has standard deviation 0.1, so that the tied head starts near uniform.
    """
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name, (rows, columns) in shapes(shape).items():
        if name.endswith((".out", ".down")):
            made[name] = np.zeros((rows, columns), np.float32)
        else:
            scale = 0.1 if name == "embed" else rows**-0.5
            made[name] = (scale * rng.standard_normal((rows, columns))).astype(np.float32)
    return made


def frozen(items: Iterable[tuple[str, Array]]) -> Weights:
    """Contiguous private copies, marked read-only: safe to share between threads."""
    copies = {name: np.array(value, order="C") for name, value in items}
    for value in copies.values():
        value.flags.writeable = False
    return copies


def check(shape: Shape, weights: Weights) -> None:
    """Raise ValueError unless ``weights`` holds exactly the matrices of ``shape``."""
    want = shapes(shape)
    have = {name: value.shape for name, value in weights.items()}
    if have != want:
        odd = sorted(name for name in want | have if want.get(name) != have.get(name))
        raise ValueError(f"weights do not fit {shape}: {', '.join(odd)}")


def save_base(directory: Path, shape: Shape, weights: Weights) -> Path:
    """Write ``weights`` as float16 to ``directory``/weights.npz; returns the file."""
    check(shape, weights)
    file = directory / FILE
    stored: dict[str, Any] = {name: value.astype(np.float16) for name, value in weights.items()}
    stored[_SHAPE_KEY] = np.frombuffer(json.dumps(vars(shape)).encode(), np.uint8)
    with file.open("wb") as out:
        np.savez(out, **stored)
    return file


def load_base(directory: Path) -> tuple[Shape, Weights]:
    """Read ``directory``/weights.npz, widened to float32.

    The file is float16, but trainer and sampler both start from the same widened values: the
    rounding happens once, here, and not on one side of the comparison only.
    """
    with np.load(directory / FILE, allow_pickle=False) as stored:
        shape = Shape(**json.loads(stored[_SHAPE_KEY].tobytes()))
        names = [name for name in stored.files if name != _SHAPE_KEY]
        weights = frozen((name, stored[name].astype(np.float32)) for name in names)
    check(shape, weights)
    return shape, weights
