"""What a server learns from parity alone: a first model, its loss, and how far to trust both.

Parity (X̃, Ỹ) of few rows has E[X̃ᵀX̃] = XᵀX. One decomposition X̃ᵀX̃ = Q·T·Qᵀ serves everything: ridge
regression for any ridge, its leave-one-out loss, and the preconditioner for any damping. Rows that
come later are an update of it (Woodbury's identity), not another decomposition.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from codedfedl.arrays import Array, FloatArray, asarray_like, to_host
from codedfedl.errors import InputError
from codedfedl.learning.left_out import LeftOut
from codedfedl.learning.tridiagonal import Factor, Tridiagonal

__all__ = ["Sketch"]

_RIDGES = np.geomspace(1e-6, 1.0, 49)  # relative to the largest eigenvalue
_COARSE = 4  # every so many of them are tried first
_KEPT = 4  # factors and inverses: a step and its decrement need two
_ALL = slice(None)

T = TypeVar("T")


class _Room:
    """Memory for rows that are appended some at a time: those before are seldom copied."""

    def __init__(self, rows: Array) -> None:
        self._all = self._last = rows

    def after(self, rows: Array, more: Array) -> Array:
        """Return rows with more after them; the rows before stay valid."""
        begin, end = rows.shape[0], rows.shape[0] + more.shape[0]
        if rows is not self._last or end > self._all.shape[0]:
            shape = (end + end // 4, more.shape[1])
            self._all = array_namespace(more).empty(shape, dtype=more.dtype, device=device(more))
            self._all[:begin, ...] = rows
        self._all[begin:end, ...] = more
        self._last = self._all[:end]
        return self._last


@dataclass(frozen=True, eq=False)
class Sketch:
    """Parity and its Hessian, in float64.

    Matrices with q columns stay where the parity is, on the host or on a GPU. Whatever has c
    columns, such as a model, comes from the host and goes back there.

    Attributes
    ----------
    features, targets : arrays of shape (u, q) and (u, c)
    hessian
        Q·T·Qᵀ of the rows that were decomposed.
    late : array of shape (k, q)
        L = X̃_late·Q of the k rows that were not: X̃ᵀX̃ = Q·(T + LᵀL)·Qᵀ.
    rooms
        Memory behind `features` and `late`, for rows to come.
    """

    features: Array
    targets: FloatArray
    hessian: Tridiagonal
    late: Array
    rooms: "tuple[_Room, _Room]"

    @classmethod
    def of(cls, features: Array, targets: Array) -> "Sketch":
        """Decompose parity, or say what is wrong with it."""
        x, y = _checked(features, targets)
        return cls(x, y, Tridiagonal.of(x.T @ x), x[:0], (_Room(x), _Room(x[:0])))

    def with_rows(self, features: Array, targets: Array) -> "Sketch":
        """Return the sketch of these rows too, by an update."""
        x, y = _checked(features, targets)
        for_features, for_late = self.rooms
        return replace(
            self,
            features=for_features.after(self.features, x),
            targets=np.concatenate([self.targets, y]),
            late=for_late.after(self.late, self.hessian.turned(x.T).T),
        )

    @property
    def rows(self) -> int:
        """Parity rows, u."""
        return len(self.targets)

    @property
    def late_rows(self) -> int:
        """Rows that came after the decomposition, k."""
        return int(self.late.shape[0])

    def predictions(self, model: FloatArray, rows: slice = _ALL) -> FloatArray:
        """Return X̃·model of some rows."""
        return _product(self.features[rows], model)

    def gathered(self, errors: FloatArray, rows: slice = _ALL) -> FloatArray:
        """Return X̃ᵀ·errors of some rows."""
        return _product(self.features[rows].T, errors)

    def turned(self, vector: FloatArray) -> FloatArray:
        """Return Qᵀ·vector."""
        return to_host(self.hessian.turned(asarray_like(vector, self.features)))

    def turned_back(self, turned: FloatArray) -> FloatArray:
        """Return Q·turned."""
        return to_host(self.hessian.turned_back(asarray_like(turned, self.features)))

    def curved(self, turned: FloatArray) -> FloatArray:
        """Return X̃ᵀX̃·vector of a vector in the basis Q, in that basis."""
        product = self.hessian.times(turned)
        if self.late_rows:
            product += _product(self.late.T, _product(self.late, turned))
        return product

    def times(self, vector: FloatArray) -> FloatArray:
        """Return X̃ᵀX̃·vector."""
        return self.turned_back(self.curved(self.turned(vector)))

    def divided(self, turned: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return (scale·X̃ᵀX̃ + ridge)⁻¹·vector of a vector in the basis Q, in that basis.

        With late rows and W = scale·T + ridge, (W + s·LᵀL)⁻¹ = W⁻¹ − s·W⁻¹Lᵀ(I + s·LW⁻¹Lᵀ)⁻¹LW⁻¹.
        """
        factor = self._factor(scale, ridge)
        quotient = factor.solve(turned)
        if self.late_rows:
            inner = _product(self._inverse(scale, ridge), _product(self.late, quotient))
            quotient -= factor.solve(scale * _product(self.late.T, inner))
        return np.asarray(quotient)

    def divide(self, vector: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return (scale·X̃ᵀX̃ + ridge)⁻¹·vector."""
        return self.turned_back(self.divided(self.turned(vector), scale, ridge))

    def solve(self, ridge: float) -> FloatArray:
        """Return the ridge regression on the parity, shape (q, c)."""
        return self.divide(self.gathered(self.targets), 1.0, ridge)

    def _factor(self, scale: float, ridge: float) -> Factor:
        """Return L of L·Lᵀ = scale·T + ridge."""
        try:
            return _kept(self._factors, (scale, ridge), self.hessian.factor)
        except np.linalg.LinAlgError:
            raise InputError(
                f"the parity's Hessian is singular: {self.rows} rows for {self.hessian.size} "
                f"features and a ridge of {ridge:g}; give training.ridge a higher value"
            ) from None

    def _inverse(self, scale: float, ridge: float) -> Array:
        """(I + s·LW⁻¹Lᵀ)⁻¹, shape (k, k)."""

        def inverted(scale: float, ridge: float) -> Array:
            half = self._factor(scale, ridge).half(self.late.T)
            xp = array_namespace(half)
            eye = xp.eye(self.late_rows, dtype=half.dtype, device=device(half))
            return xp.linalg.inv(eye + scale * (half.T @ half))

        return _kept(self._inverses, (scale, ridge), inverted)

    @cached_property
    def _factors(self) -> dict[tuple[float, float], Factor]:
        return {}

    @cached_property
    def _inverses(self) -> dict[tuple[float, float], Array]:
        return {}

    def effective_dimension(self, ridge: float) -> float:
        """tr(X̃ᵀX̃(X̃ᵀX̃ + ridge)⁻¹): how many directions the data determine."""
        factor = self._factor(1.0, ridge)
        found = self.hessian.size - ridge * factor.inverse_trace()
        if self.late_rows:
            spread = factor.solve(self.late.T)
            found += ridge * float((self._inverse(1.0, ridge) * (spread.T @ spread)).sum())
        return found

    def leave_one_out(self, ridge: float) -> float:
        """Squared error on every row of the model fitted without it (PRESS), summed.

        A row that was left out is a random combination of points, so this estimates the squared
        error of the model on *all* points, without a test point.
        """
        return float(self._left_out.errors(np.array([ridge]), 2)[0])

    def smallest_objective(self, ridge: float) -> float:
        """Estimate the ridge objective of all points at its minimum, ½‖Xβ − Y‖² + ½·ridge·‖β‖².

        The fit makes the parity's own errors too small; each row is corrected by its leverage. The
        result is needed in every round for the same ridge, so it is cached.
        """
        if ridge not in self._objectives:
            penalty = ridge * float((self.solve(ridge) ** 2).sum())
            errors = float(self._left_out.errors(np.array([ridge]), 1)[0])
            self._objectives[ridge] = (errors + penalty) / 2
        return self._objectives[ridge]

    @cached_property
    def _objectives(self) -> dict[float, float]:
        return {}

    @cached_property
    def _left_out(self) -> LeftOut:
        return LeftOut(self)

    def excess(self, start_ridge: float, ridge: float) -> float:
        """Estimate the relative excess of the objective at the model of `start_ridge`."""
        penalty = ridge * float((self.solve(start_ridge) ** 2).sum())
        value = (self.leave_one_out(start_ridge) + penalty) / 2
        return max(value / max(self.smallest_objective(ridge), np.finfo(float).tiny) - 1, 0.0)

    def best_ridge(self, least: float) -> float:
        """Return the ridge from `least` on with the smallest leave-one-out loss, on a grid."""
        ridges = np.maximum(_RIDGES * max(self.hessian.largest, np.finfo(float).tiny), least)
        ridges = np.unique(ridges[ridges > 0])
        losses = np.full(len(ridges), np.inf)
        coarse = np.arange(0, len(ridges), _COARSE)
        losses[coarse] = self._left_out.errors(ridges[coarse], 2)
        near = int(losses.argmin())
        fine = np.arange(max(near - _COARSE + 1, 0), min(near + _COARSE, len(ridges)))
        losses[fine] = self._left_out.errors(ridges[fine], 2)
        return float(ridges[losses.argmin()])


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


def _kept(
    store: dict[tuple[float, float], T],
    key: tuple[float, float],
    make: Callable[[float, float], T],
) -> T:
    """Return what is stored, or make it; the oldest of too many goes."""
    if key not in store:
        if len(store) == _KEPT:
            store.pop(next(iter(store)))
        store[key] = make(*key)
    return store[key]
