"""Gradients of the squared loss: a client's, the server's on parity, and both as quadratics.

All are *sums* over points, ½‖Xβ − Y‖² differentiated; whoever uses them divides by m. Parity is a
client's weighted points, mixed by a code (section 3.2 and 3.4).
"""

from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from codedfedl.arrays import Array, FloatArray
from codedfedl.errors import InputError
from codedfedl.learning.codes import GAUSSIAN, Code

_ROWS_AT_ONCE = 4096


def gradient(features: Array, targets: Array, model: Array, weights: Array | None = None) -> Array:
    """Xᵀ·diag(w)·(Xβ − Y), a few thousand rows at a time, shape (q, c).

    With a client's points this is ℓ·g^(j) of section 3.5; with parity it is g_C. Weights have shape
    (k,), and are 1 by default.
    """
    total = None
    for start in range(0, features.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        residual = features[rows] @ model - targets[rows]
        if weights is not None:
            xp = array_namespace(residual)
            residual = residual * xp.astype(weights[rows, None], residual.dtype)
        part = features[rows].T @ residual
        total = part if total is None else total + part
    return total


@dataclass(frozen=True, eq=False)
class Quadratic:
    """½‖Xβ − Y‖² known by XᵀX, shape (q, q), and XᵀY, shape (q, c): its gradient reads no point."""

    hessian: Array
    moment: Array

    @classmethod
    def of(cls, features: Array, targets: Array) -> "Quadratic":
        """Compute the Gram matrix and the moments of points."""
        return cls(features.T @ features, features.T @ targets)

    def __add__(self, other: "Quadratic") -> "Quadratic":
        """Return the quadratic of both sets of points."""
        return Quadratic(self.hessian + other.hessian, self.moment + other.moment)

    def __sub__(self, other: "Quadratic") -> "Quadratic":
        """Return the quadratic of the points that are not the other's."""
        return Quadratic(self.hessian - other.hessian, self.moment - other.moment)

    def __truediv__(self, divisor: float) -> "Quadratic":
        """Return the quadratic over a number."""
        return Quadratic(self.hessian / divisor, self.moment / divisor)

    def gradient(self, model: Array) -> Array:
        """XᵀXβ − XᵀY."""
        return self.hessian @ model - self.moment

    def minimum(self, ridge: float) -> Array:
        """Solve (XᵀX + ridge·I)β = XᵀY in float64, on the device."""
        xp = array_namespace(self.hessian)
        hessian = xp.astype(self.hessian, xp.float64)
        eye = xp.eye(hessian.shape[0], dtype=xp.float64, device=hessian.device)
        try:
            return xp.linalg.solve(hessian + ridge * eye, xp.astype(self.moment, xp.float64))
        except (np.linalg.LinAlgError, RuntimeError) as error:  # NumPy's, and PyTorch's
            raise InputError(
                f"the Gram matrix cannot be inverted with a ridge of {ridge:g}: "
                "give training.ridge a value above 0"
            ) from error


@dataclass(frozen=True, eq=False)
class ParityRows:
    """X̆, shape (u, q), and Y̆, shape (u, c)."""

    features: Array
    targets: Array


def point_weights(points: int, load: int, return_probability: float) -> FloatArray:
    """Weigh a client's points: √P(no return) for the `load` that it processes, 1 for the others."""
    weights = np.ones(points)
    weights[:load] = np.sqrt(1 - return_probability)
    return weights


def evenness(weights: FloatArray) -> float:
    """Return Σw²/(k·max w²) of k weights: 1 if all are equal, 1/k if one point has all weight.

    k times this many points of equal weight would hide a point as well. Weights that are all 0 mix
    nothing, and count as equal.
    """
    largest = float(np.max(weights, initial=0.0)) ** 2
    return float(np.sum(weights**2)) / (len(weights) * largest) if largest else 1.0


def encode(
    features: Array,
    targets: Array,
    weights: FloatArray,
    rows: int,
    rng: np.random.Generator,
    code: Code = GAUSSIAN,
) -> ParityRows:
    """G·W·X̂ and G·W·Y of one client, with G of `rows` × points from its private stream."""
    return ParityRows(*code.mix((features, targets), weights, rows, rng))
