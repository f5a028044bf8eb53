"""How much a server damps its Newton steps, from the parity alone."""

import math
from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse.linalg import LinearOperator, eigsh

from codedfedl.arrays import FloatArray, asarray_like, to_host
from codedfedl.learning.codes import Code
from codedfedl.learning.sketching import Sketch

__all__ = ["STABLE", "damping"]

_RESKETCH = Code("sparse", 8)
_BASIS = 40  # vectors in which the eigenvalue is sought: with fewer it takes more products
STABLE = 1.2
"""Largest ratio of true to assumed curvature that `damping` aims at; steps diverge from 2 on."""


def damping(sketch: Sketch, ridge: float, rng: np.random.Generator) -> float:
    """Return the smallest λ_P at which H + ridge ≼ 2·(H̃ + λ_P) can safely be expected.

    H is the true Hessian, which the server does not know. But H̃ relates to H as a fresh sketch H̃′
    of the parity relates to H̃, with one exception: the largest eigenvalues of H̃ are themselves
    (1 + √θ)² times too large, θ = d_eff(λ_P)/u, and so is the damping found from it.

    H̃ + ridge ≼ 1.2·(H̃′ + λ_P) if and only if 1.2·λ_P is at least the largest eigenvalue of
    H̃ + ridge − 1.2·H̃′ = ridge + X̃ᵀ(I − 1.2·SᵀS)X̃, with the code S of the fresh sketch.

    It is an estimate. Where it is too low, the clients' answers show it (`coded-newton`).
    """
    code = _RESKETCH.matrix(sketch.rows, sketch.rows, rng)
    xp = array_namespace(sketch.features)
    x = xp.astype(sketch.features, xp.float32)  # to read half as much: 1% is all that is wanted

    def product(vector: FloatArray) -> FloatArray:
        column = vector.reshape(-1, 1)
        mixed = to_host(x @ asarray_like(column.astype(np.float32), x))
        mixed = mixed - np.float32(STABLE) * (code.T @ (code @ mixed))
        return np.asarray(ridge * column + to_host(x.T @ asarray_like(mixed.astype(np.float32), x)))

    needed = _largest_eigenvalue(product, sketch.hessian.size) / STABLE
    high = max(sketch.hessian.largest, 2 * ridge)
    found = _rounded_up(needed, max(ridge, 1e-9 * high), high)
    theta = sketch.effective_dimension(found) / sketch.rows
    return float(max(ridge, found / (1 + theta**0.5) ** 2))


def _largest_eigenvalue(product: Callable[[FloatArray], FloatArray], size: int) -> float:
    """Return that of a symmetric matrix, to 1%."""
    if size < 4:
        return float(np.linalg.eigvalsh(np.hstack([product(e) for e in np.eye(size)])).max())
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start, basis = np.ones(size), min(_BASIS, size)
    (found,) = eigsh(
        operator, k=1, which="LA", tol=1e-2, v0=start, ncv=basis, return_eigenvectors=False
    )
    return float(found)


def _rounded_up(value: float, low: float, high: float) -> float:
    """Round up on a geometric grid from `low` to `high`, with steps of 10% at most.

    A value from one random sketch is no better known than that.
    """
    if value <= low:
        return low
    steps = 2 ** math.ceil(math.log2(math.log(high / low) / math.log(1.1)))
    place = math.ceil(steps * math.log(value / low) / math.log(high / low))
    return float(low * (high / low) ** (min(place, steps) / steps))
