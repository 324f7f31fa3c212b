"""Muon (Jordan et al. 2024): momentum whose matrix is made orthogonal before it is applied.

The update's singular values are all pushed to about 1 by five Newton-Schulz steps of the
quintic a X + b (X X^T) X + c (X X^T)^2 X, so that every direction learns at the same pace.
"""

import numpy as np

from mtrl_cli.local.engine.types import Array

_A, _B, _C = 3.4445, -4.7750, 2.0315
MOMENTUM = 0.95


def orthogonal(matrix: Array) -> Array:
    """The nearest semi-orthogonal matrix, approximately."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = _A * x + (_B * square + _C * square @ square) @ x
    return np.asarray(x.T if tall else x)


class Muon:
    """Nesterov momentum with orthogonal updates for matrices y = x @ W."""

    def __init__(self, matrices: dict[str, Array]) -> None:
        self._matrices = matrices
        self._momentum = {name: np.zeros_like(value) for name, value in matrices.items()}

    def step(self, gradients: dict[str, Array], learning_rate: float) -> None:
        """Move the matrices in place. ``qkv`` is three matrices side by side."""
        for name, matrix in self._matrices.items():
            momentum = self._momentum[name]
            momentum *= MOMENTUM
            momentum += gradients[name]
            update = gradients[name] + MOMENTUM * momentum
            parts = 3 if name.endswith("qkv") else 1
            moves = [orthogonal(part) for part in np.split(update, parts, axis=1)]
            rows, columns = moves[0].shape
            matrix -= learning_rate * max(1, columns / rows) ** 0.5 * np.concatenate(moves, axis=1)
