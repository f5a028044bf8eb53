"""What a server learns from parity alone: a first model, its loss, and how far to trust both.

Parity (X̃, Ỹ) of few rows has E[X̃ᵀX̃] = XᵀX. One decomposition X̃ᵀX̃ = V·Λ·Vᵀ serves everything: ridge
regression for any ridge, its leave-one-out loss, and the preconditioner for any damping. Rows that
come later are an update of it (Woodbury's identity), not another decomposition.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse.linalg import LinearOperator, eigsh

from codedfedl.arrays import Array, FloatArray, asarray_like, to_host
from codedfedl.errors import InputError
from codedfedl.learning.codes import Code

RELATIVE_RIDGES = np.geomspace(1e-6, 1.0, 49)  # These shares of the largest eigenvalue are tried.
ROWS_AT_ONCE = 1024  # Squares of so many rows are in memory at one time.
FRESH_CODE = Code("sparse", 8)  # It mixes parity once more, to show how far a sketch is off.
LANCZOS_VECTORS = 40  # With fewer vectors the largest eigenvalue takes more products.

MAX_CURVATURE_RATIO = 1.2
"""Largest ratio of true to assumed curvature that `damping` aims at; steps diverge from 2 on."""

_ALL = slice(None)


@dataclass(frozen=True, eq=False)
class Sketch:
    """Parity and its Hessian, in float64, in the basis of the Hessian's eigenvectors V.

    Matrices with q columns stay where the parity is, on the host or on a GPU. Whatever has c
    columns, such as a model, comes from the host and goes back there.

    Attributes
    ----------
    features, targets : arrays of shape (u, q) and (u, c)
        X̃·V and Ỹ.
    basis : array of shape (q, q)
        V.
    eigenvalues : array of shape (q,)
        Of the rows that were decomposed, in ascending order.
    decomposed
        How many rows these are: the others, L = X̃_late·V, give X̃ᵀX̃ = V·(Λ + LᵀL)·Vᵀ.
    """

    features: Array
    targets: FloatArray
    basis: Array
    eigenvalues: FloatArray
    decomposed: int

    @classmethod
    def of(cls, features: Array, targets: Array) -> "Sketch":
        """Decompose parity, or say what is wrong with it."""
        x, y = _checked(features, targets)
        eigenvalues, basis = array_namespace(x).linalg.eigh(x.T @ x)
        return cls(x @ basis, y, basis, np.maximum(to_host(eigenvalues), 0.0), len(y))

    def with_rows(self, features: Array, targets: Array) -> "Sketch":
        """Return the sketch of these rows too, by an update."""
        x, y = _checked(features, targets)
        return replace(
            self,
            features=array_namespace(x).concat([self.features, x @ self.basis]),
            targets=np.concatenate([self.targets, y]),
        )

    @property
    def rows(self) -> int:
        """Parity rows, u."""
        return len(self.targets)

    @property
    def late_rows(self) -> int:
        """Rows that came after the decomposition, k."""
        return self.rows - self.decomposed

    @property
    def largest(self) -> float:
        """The largest eigenvalue of the rows that were decomposed."""
        return float(self.eigenvalues[-1])

    def to_basis(self, vector: FloatArray) -> FloatArray:
        """Return Vᵀ·vector."""
        return _product(self.basis.T, vector)

    def from_basis(self, vector: FloatArray) -> FloatArray:
        """Return V·vector of a vector in the basis."""
        return _product(self.basis, vector)

    def matvec(self, vector: FloatArray, rows: slice = _ALL) -> FloatArray:
        """Return what a model predicts for some rows, X̃·V·vector, of a vector in the basis."""
        return _product(self.features[rows], vector)

    def rmatvec(self, errors: FloatArray, rows: slice = _ALL) -> FloatArray:
        """Return Vᵀ·X̃ᵀ·errors of some rows, in the basis."""
        return _product(self.features[rows].T, errors)

    def apply_hessian(self, vector: FloatArray) -> FloatArray:
        """Return X̃ᵀX̃·vector of a vector in the basis, in that basis."""
        product = self.eigenvalues[:, None] * vector
        if self.late_rows:
            product += _product(self._late.T, _product(self._late, vector))
        return product

    def solve(self, vector: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return (scale·X̃ᵀX̃ + ridge)⁻¹·vector of a vector in the basis, in that basis.

        With late rows and W = scale·Λ + ridge, (W + s·LᵀL)⁻¹ = W⁻¹ − s·W⁻¹Lᵀ(I + s·LW⁻¹Lᵀ)⁻¹LW⁻¹.
        """
        inverse = self._inverse(scale, ridge)[:, None]
        quotient = inverse * vector
        if self.late_rows:
            inner = self._late_inverse(scale, ridge) @ _product(self._late, quotient)
            quotient -= scale * inverse * _product(self._late.T, inner)
        return quotient

    def ridge_regression(self, ridge: float) -> FloatArray:
        """Return the model that ridge regression on the parity gives, shape (q, c)."""
        return self.from_basis(self.solve(self.rmatvec(self.targets), 1.0, ridge))

    def effective_dimension(self, ridge: float) -> float:
        """tr(X̃ᵀX̃(X̃ᵀX̃ + ridge)⁻¹): how many directions the data determine."""
        inverse = self._inverse(1.0, ridge)
        trace = float(inverse.sum())
        if self.late_rows:
            spread = self._late * asarray_like(inverse, self._late)
            trace -= float((self._late_inverse(1.0, ridge) * to_host(spread @ spread.T)).sum())
        return len(inverse) - ridge * trace

    def leave_one_out(self, ridge: float) -> float:
        """Squared error on every row of the model fitted without it (PRESS), summed.

        A row that was left out is a random combination of points, so this estimates the squared
        error of the model on *all* points, without a test point.
        """
        return float(self._corrected_errors(np.array([ridge]), 2)[0])

    def smallest_objective(self, ridge: float) -> float:
        """Estimate the ridge objective of all points at its minimum, ½‖Xβ − Y‖² + ½·ridge·‖β‖².

        The fit makes the parity's own errors too small; each row is corrected by its leverage. The
        result is needed in every round for the same ridge, so it is kept.
        """
        if ridge not in self._smallest_objectives:
            penalty = ridge * float((self.ridge_regression(ridge) ** 2).sum())
            errors = float(self._corrected_errors(np.array([ridge]), 1)[0])
            self._smallest_objectives[ridge] = (errors + penalty) / 2
        return self._smallest_objectives[ridge]

    def excess(self, start_ridge: float, ridge: float) -> float:
        """Estimate the relative excess of the objective at the model of `start_ridge`."""
        penalty = ridge * float((self.ridge_regression(start_ridge) ** 2).sum())
        value = (self.leave_one_out(start_ridge) + penalty) / 2
        return max(value / max(self.smallest_objective(ridge), np.finfo(float).tiny) - 1, 0.0)

    def best_ridge(self, least: float) -> float:
        """Return the ridge from `least` on with the smallest leave-one-out loss, on a grid."""
        ridges = np.maximum(RELATIVE_RIDGES * max(self.largest, np.finfo(float).tiny), least)
        ridges = np.unique(ridges[ridges > 0])
        return float(ridges[self._corrected_errors(ridges, 2).argmin()])

    def _corrected_errors(self, ridges: FloatArray, power: int) -> FloatArray:
        """Return the squared errors of each fit over (1 − h)^power, summed over all rows.

        Without a row of leverage h, the error of the fit there would be 1/(1 − h) times as large.
        """
        moments = self.rmatvec(self.targets)
        models = [self.solve(moments, 1.0, ridge) for ridge in ridges.tolist()]
        fits = np.split(self.matvec(np.hstack(models)), len(ridges), axis=1)
        squares = np.stack([((self.targets - fit) ** 2).sum(1) for fit in fits], axis=1)
        correction = np.maximum(1 - self._leverages(ridges), 1e-12) ** -power
        return np.asarray((squares * correction).sum(0))

    def _leverages(self, ridges: FloatArray) -> FloatArray:
        """Return h = x̃ᵀ(X̃ᵀX̃ + ridge)⁻¹x̃ of every row x̃ for each ridge, shape (u, ridges)."""
        inverses = np.stack([self._inverse(1.0, ridge) for ridge in ridges.tolist()], axis=1)
        starts = range(0, self.rows, ROWS_AT_ONCE)
        parts = (self.features[start : start + ROWS_AT_ONCE] for start in starts)
        leverages = np.concatenate([_product(part**2, inverses) for part in parts])
        if self.late_rows:
            for k, ridge in enumerate(ridges.tolist()):
                spread = self._late * asarray_like(inverses[:, k], self._late)
                along = to_host(self.features @ spread.T)
                leverages[:, k] -= ((along @ self._late_inverse(1.0, ridge)) * along).sum(1)
        return leverages

    def _inverse(self, scale: float, ridge: float) -> FloatArray:
        """Return the diagonal of (scale·Λ + ridge)⁻¹."""
        diagonal = scale * self.eigenvalues + ridge
        if not diagonal[0] > len(diagonal) * np.finfo(float).eps * diagonal[-1]:
            raise InputError(
                f"the parity's Hessian is singular: {self.rows} rows for {len(diagonal)} "
                f"features and a ridge of {ridge:g}; give training.ridge a higher value"
            )
        return np.asarray(1 / diagonal)

    def _late_inverse(self, scale: float, ridge: float) -> FloatArray:
        """Return (I + s·LW⁻¹Lᵀ)⁻¹, shape (k, k)."""
        spread = self._late * asarray_like(scale * self._inverse(scale, ridge), self._late)
        return np.asarray(np.linalg.inv(np.eye(self.late_rows) + to_host(spread @ self._late.T)))

    @property
    def _late(self) -> Array:
        return self.features[self.decomposed :]

    @cached_property
    def _smallest_objectives(self) -> dict[float, float]:
        return {}


def _checked(features: Array, targets: Array) -> tuple[Array, FloatArray]:
    """Return parity in float64, its targets on the host."""
    if features.ndim != 2 or targets.ndim != 2 or len(features) != len(targets) or not len(targets):
        raise InputError(
            f"parity has features of shape {tuple(features.shape)} and targets of shape "
            f"{tuple(targets.shape)}: must be (u, q) and (u, c) with at least one row"
        )
    xp = array_namespace(features)
    x, y = xp.astype(features, xp.float64), to_host(targets).astype(np.float64)
    if not (bool(xp.all(xp.isfinite(x))) and np.isfinite(y).all()):
        raise InputError("parity holds NaN or infinity: some client's data are not finite")
    return x, y


def _product(matrix: Array, columns: FloatArray) -> FloatArray:
    """Multiply where the matrix is."""
    return to_host(matrix @ asarray_like(columns, matrix))


def damping(sketch: Sketch, ridge: float, rng: np.random.Generator) -> float:
    """Return the smallest λ_P at which H + ridge ≼ 2·(H̃ + λ_P) can safely be expected.

    H is the true Hessian, which the server does not know. But H̃ relates to H as a fresh sketch H̃′
    of the parity relates to H̃, with one exception: the largest eigenvalues of H̃ are themselves
    (1 + √θ)² times too large, θ = d_eff(λ_P)/u, and so is the damping found from it.

    H̃ + ridge ≼ 1.2·(H̃′ + λ_P) if and only if 1.2·λ_P is at least the largest eigenvalue of
    H̃ + ridge − 1.2·H̃′ = ridge + X̃ᵀ(I − 1.2·SᵀS)X̃, with the code S of the fresh sketch.

    It is an estimate. Where it is too low, the clients' answers show it (`coded-newton`).
    """
    code = FRESH_CODE.matrix(sketch.rows, sketch.rows, rng)
    xp = array_namespace(sketch.features)
    x = xp.astype(sketch.features, xp.float32)  # to read half as much: 1% is all that is wanted

    def product(vector: FloatArray) -> FloatArray:
        column = vector.reshape(-1, 1)
        mixed = _product(x, column.astype(np.float32))
        mixed = mixed - np.float32(MAX_CURVATURE_RATIO) * (code.T @ (code @ mixed))
        return np.asarray(ridge * column + _product(x.T, mixed.astype(np.float32)))

    start = sketch.to_basis(np.ones((len(sketch.eigenvalues), 1)))
    needed = _largest_eigenvalue(product, start.ravel()) / MAX_CURVATURE_RATIO
    high = max(sketch.largest, 2 * ridge)
    uncorrected = _rounded_up(needed, max(ridge, 1e-9 * high), high)
    theta = sketch.effective_dimension(uncorrected) / sketch.rows
    return float(max(ridge, uncorrected / (1 + theta**0.5) ** 2))


def _largest_eigenvalue(product: Callable[[FloatArray], FloatArray], start: FloatArray) -> float:
    """Return that of a symmetric matrix, to 1%."""
    if (size := len(start)) < 4:
        return float(np.linalg.eigvalsh(np.hstack([product(e) for e in np.eye(size)])).max())
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    vectors = min(LANCZOS_VECTORS, size)
    (largest,) = eigsh(
        operator, k=1, which="LA", tol=1e-2, v0=start, ncv=vectors, return_eigenvectors=False
    )
    return float(largest)


def _rounded_up(value: float, low: float, high: float) -> float:
    """Round up on a geometric grid from `low` to `high`, with steps of 10% at most.

    A value from one random sketch is no better known than that.
    """
    if value <= low:
        return low
    steps = 2 ** math.ceil(math.log2(math.log(high / low) / math.log(1.1)))
    step = math.ceil(steps * math.log(value / low) / math.log(high / low))
    return float(low * (high / low) ** (min(step, steps) / steps))
