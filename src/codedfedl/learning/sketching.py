"""What a server learns from parity alone: a first model, its loss, and how far to trust both.

Parity (X̃, Ỹ) of few rows has E[X̃ᵀX̃] = XᵀX. One eigendecomposition of X̃ᵀX̃ serves everything here:
ridge regression for any ridge, its leave-one-out loss, and the preconditioner for any damping.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator, eigsh

from codedfedl._types import FloatArray
from codedfedl.errors import InputError
from codedfedl.learning.codes import Code

__all__ = ["Sketch", "curvature_ratio", "damping"]

_RIDGES = np.geomspace(1e-6, 1.0, 49)  # relative to the largest eigenvalue
_RESKETCH = Code("sparse", 8)
_ROWS = 4096  # of the parity, whose errors exist at one time
STABLE = 1.2
"""Largest ratio of true to assumed curvature that `damping` aims at; steps diverge from 2 on."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """Parity and its spectrum, in float64 on the host.

    Attributes
    ----------
    features, targets : arrays of shape (u, q) and (u, c)
    values, vectors : arrays of shape (q,) and (q, q)
        X̃ᵀX̃ = V·diag(values)·Vᵀ.
    """

    features: FloatArray
    targets: FloatArray
    values: FloatArray
    vectors: FloatArray

    @classmethod
    def of(cls, features: npt.ArrayLike, targets: npt.ArrayLike) -> "Sketch":
        """Decompose parity, or say what is wrong with it."""
        x, y = np.asarray(features, dtype=np.float64), np.asarray(targets, dtype=np.float64)
        if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or not len(x):
            raise InputError(
                f"parity has features of shape {x.shape} and targets of shape {y.shape}: "
                "must be (u, q) and (u, c) with at least one row"
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InputError("parity holds NaN or infinity: some client's data are not finite")
        values, vectors = np.linalg.eigh(x.T @ x)
        return cls(x, y, np.maximum(values, 0.0), vectors)

    @cached_property
    def rotated(self) -> FloatArray:
        """X̃·V, shape (u, q)."""
        return np.asarray(self.features @ self.vectors)

    @property
    def rows(self) -> int:
        """Parity rows, u."""
        return len(self.features)

    def effective_dimension(self, ridge: float) -> float:
        """tr(X̃ᵀX̃(X̃ᵀX̃ + ridge)⁻¹): how many directions the data determine."""
        return float((self.values / (self.values + ridge)).sum())

    def solve(self, ridge: float) -> FloatArray:
        """Return the ridge regression on the parity, shape (q, c)."""
        return self.divide(self.features.T @ self.targets, 1.0, ridge)

    def turned(self, vector: FloatArray) -> FloatArray:
        """Return Vᵀ·vector: a vector in the basis of the eigenvectors."""
        return np.asarray(self.vectors.T @ vector)

    def times(self, vector: FloatArray) -> FloatArray:
        """Return X̃ᵀX̃·vector."""
        return np.asarray(self.vectors @ (self.values[:, None] * self.turned(vector)))

    def divide(self, vector: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return (scale·X̃ᵀX̃ + ridge)⁻¹·vector."""
        return np.asarray(self.vectors @ self.divided(self.turned(vector), scale, ridge))

    def divided(self, turned: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return the same quotient of a vector in the eigenbasis, in that basis."""
        weights = scale * self.values + ridge
        if not weights.min() > len(weights) * np.finfo(float).eps * weights.max():
            raise InputError(
                f"the parity's Hessian is singular: {self.rows} rows for {len(weights)} features "
                "and no ridge; give training.ridge a value above 0"
            )
        return turned / weights[:, None]

    def leave_one_out(self, ridge: float) -> float:
        """Squared error on every row of the model fitted without it (PRESS), summed.

        A row that was left out is a random combination of points, so this estimates the squared
        error of the model on *all* points, without a test point.
        """
        return float(self._leave_one_out(np.array([ridge]))[0])

    def _leave_one_out(self, ridges: FloatArray) -> FloatArray:
        parts = [((e / unused) ** 2).sum((0, 2)) for e, unused in self._errors(ridges)]
        return np.asarray(np.sum(parts, axis=0))

    def smallest_objective(self, ridge: float) -> float:
        """Estimate the ridge objective of all points at its minimum, ½‖Xβ − Y‖² + ½·ridge·‖β‖².

        The fit makes the parity's own errors too small; each row is corrected by its leverage. The
        result is needed in every round for the same ridge, so it is cached.
        """
        if ridge not in self._objectives:
            penalty = ridge * float((self.solve(ridge) ** 2).sum())
            parts = [(e**2 / unused).sum() for e, unused in self._errors(np.array([ridge]))]
            self._objectives[ridge] = (float(np.sum(parts)) + penalty) / 2
        return self._objectives[ridge]

    @cached_property
    def _objectives(self) -> dict[float, float]:
        return {}

    def _errors(self, ridges: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield errors of the fits (n, r, c), and 1 − leverage of the rows (n, r, 1), in parts."""
        shrunk = 1 / np.maximum(self.values[:, None] + ridges, np.finfo(float).tiny)  # (q, r)
        moment = self.rotated.T @ self.targets
        models = (shrunk[:, :, None] * moment[:, None, :]).reshape(len(shrunk), -1)
        for start in range(0, self.rows, _ROWS):
            part = slice(start, start + _ROWS)
            rotated, targets = self.rotated[part], self.targets[part]
            fitted = (rotated @ models).reshape(len(targets), len(ridges), -1)
            unused = np.maximum(1 - rotated**2 @ shrunk, 1e-12)
            yield targets[:, None, :] - fitted, unused[:, :, None]

    def excess(self, start_ridge: float, ridge: float) -> float:
        """Estimate the relative excess of the objective at the model of `start_ridge`."""
        penalty = ridge * float((self.solve(start_ridge) ** 2).sum())
        value = (self.leave_one_out(start_ridge) + penalty) / 2
        return max(value / max(self.smallest_objective(ridge), np.finfo(float).tiny) - 1, 0.0)

    def best_ridge(self, least: float) -> float:
        """Return the ridge from `least` on with the smallest leave-one-out loss, on a grid."""
        ridges = np.maximum(_RIDGES * max(self.values[-1], np.finfo(float).tiny), least)
        ridges = np.unique(ridges[ridges > 0])
        return float(ridges[np.argmin(self._leave_one_out(ridges))])


def curvature_ratio(true: Sketch, assumed: Sketch, ridge: float, damped: float) -> float:
    """λ_max((H̃ + damped)⁻¹(H + ridge)): how much more a direction curves than is assumed."""
    whiten = assumed.vectors / np.sqrt(assumed.values + damped)
    curved = true.values + ridge

    def product(v: FloatArray) -> FloatArray:
        turned = true.vectors.T @ (whiten @ v.ravel())
        return np.asarray(whiten.T @ (true.vectors @ (curved * turned)))

    size = len(curved)
    if size < 4:
        return float(np.linalg.eigvalsh(np.array([product(e) for e in np.eye(size)])).max())
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = np.ones(size)
    return float(eigsh(operator, k=1, tol=1e-2, v0=start, return_eigenvectors=False)[0])


def damping(sketch: Sketch, ridge: float, rng: np.random.Generator) -> float:
    """Return the smallest λ_P at which H + ridge ≼ 2·(H̃ + λ_P) can safely be expected.

    H is the true Hessian, which the server does not know. But H̃ relates to H as a fresh sketch H̃′
    of the parity relates to H̃, with one exception: the largest eigenvalues of H̃ are themselves
    (1 + √θ)² times too large, θ = d_eff(λ_P)/u, and so is the damping found from it.

    It is an estimate. Where it is too low, the clients' answers show it (`coded-newton`).
    """
    (fresh,) = _RESKETCH.mix((sketch.features,), np.ones(sketch.rows), sketch.rows, rng)
    again = Sketch.of(fresh, sketch.targets)
    low, high = ridge, max(float(sketch.values[-1]), 2 * ridge)
    low = max(low, 1e-9 * high)
    if curvature_ratio(sketch, again, ridge, low) > STABLE:
        while high > 1.1 * low:
            middle = float(np.sqrt(low * high))
            stable = curvature_ratio(sketch, again, ridge, middle) <= STABLE
            low, high = (low, middle) if stable else (middle, high)
        low = high
    theta = sketch.effective_dimension(low) / sketch.rows
    return float(max(ridge, low / (1 + theta**0.5) ** 2))
