"""What a server learns from parity alone: a first model, its loss, and how far to trust both.

Parity (X̃, Ỹ) of few rows has E[X̃ᵀX̃] = XᵀX. One eigendecomposition of X̃ᵀX̃ serves everything here:
ridge regression for any ridge, its leave-one-out loss, and the preconditioner for any damping. Rows
that come later are an update of it (Woodbury's identity), not another decomposition.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace, device

from codedfedl._types import FloatArray, IntArray
from codedfedl.arrays import Array, beside, to_host
from codedfedl.errors import InputError

__all__ = ["Sketch"]

_RIDGES = np.geomspace(1e-6, 1.0, 49)  # relative to the largest eigenvalue
_ROWS = 4096  # of the parity, whose errors exist at one time
_ENOUGH = 8192  # rows, to estimate a mean of squares to √(2/8192), 1.6%
_INVERSES = 4  # that are kept: a step and its decrement need two
_ALL = slice(None)


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
    """Parity and the spectrum of its Hessian, in float64.

    Matrices with q columns stay where the parity is, on the host or on a GPU. Whatever has c
    columns, such as a model, comes from the host and goes back there.

    Attributes
    ----------
    features, targets : arrays of shape (u, q) and (u, c)
    values, vectors : arrays of shape (q,) and (q, q)
        V·diag(values)·Vᵀ is the Hessian of the rows that were decomposed.
    late : array of shape (k, q)
        L = X̃_late·V of the k rows that were not: X̃ᵀX̃ = V·(diag(values) + LᵀL)·Vᵀ.
    judged : array of shape (n,)
        Rows on which models are judged: all, or every second, third, … where there are enough.
    rotated : array of shape (n, q)
        X̃·V of these.
    rooms
        Memory behind `features`, `late` and `rotated`, for rows to come.
    """

    features: Array
    targets: FloatArray
    values: FloatArray
    vectors: Array
    late: Array
    judged: IntArray
    rotated: Array
    rooms: "tuple[_Room, _Room, _Room]"

    @classmethod
    def of(cls, features: Array, targets: Array) -> "Sketch":
        """Decompose parity, or say what is wrong with it."""
        x, y = _checked(features, targets)
        values, vectors = array_namespace(x).linalg.eigh(x.T @ x)
        values = np.maximum(to_host(values), 0.0)
        every = max(1, len(y) // _ENOUGH)
        judged, rotated = np.arange(0, len(y), every), x[::every] @ vectors
        late = x[:0]
        rooms = (_Room(x), _Room(late), _Room(rotated))
        return cls(x, y, values, vectors, late, judged, rotated, rooms)

    def with_rows(self, features: Array, targets: Array) -> "Sketch":
        """Return the sketch of these rows too, by an update."""
        x, y = _checked(features, targets)
        late, every = x @ self.vectors, max(1, self.rows // _ENOUGH)
        judged = self.rows + np.arange(0, len(y), every)
        for_features, for_late, for_rotated = self.rooms
        return replace(
            self,
            features=for_features.after(self.features, x),
            targets=np.concatenate([self.targets, y]),
            late=for_late.after(self.late, late),
            judged=np.concatenate([self.judged, judged]),
            rotated=for_rotated.after(self.rotated, late[::every]),
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
        """Return Vᵀ·vector: a vector in the basis of the eigenvectors."""
        return _product(self.vectors.T, vector)

    def turned_back(self, turned: FloatArray) -> FloatArray:
        """Return V·turned."""
        return _product(self.vectors, turned)

    def curved(self, turned: FloatArray) -> FloatArray:
        """Return X̃ᵀX̃·vector of a vector in the eigenbasis, in that basis."""
        product = self.values[:, None] * turned
        if self.late_rows:
            product += _product(self.late.T, _product(self.late, turned))
        return np.asarray(product)

    def times(self, vector: FloatArray) -> FloatArray:
        """Return X̃ᵀX̃·vector."""
        return self.turned_back(self.curved(self.turned(vector)))

    def divided(self, turned: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return (scale·X̃ᵀX̃ + ridge)⁻¹·vector of a vector in the eigenbasis, in that basis."""
        weights = scale * self.values + ridge
        if not weights.min() > len(weights) * np.finfo(float).eps * weights.max():
            raise InputError(
                f"the parity's Hessian is singular: {self.rows} rows for {len(weights)} features "
                "and no ridge; give training.ridge a value above 0"
            )
        return self._divided(turned, scale, ridge)

    def divide(self, vector: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Return (scale·X̃ᵀX̃ + ridge)⁻¹·vector."""
        return self.turned_back(self.divided(self.turned(vector), scale, ridge))

    def solve(self, ridge: float) -> FloatArray:
        """Return the ridge regression on the parity, shape (q, c)."""
        return self.divide(self.gathered(self.targets), 1.0, ridge)

    def _divided(self, turned: FloatArray, scale: float, ridge: float) -> FloatArray:
        """Divide by W = scale·diag(values) + ridge, and correct for the late rows.

        (W + s·LᵀL)⁻¹ = W⁻¹ − s·W⁻¹Lᵀ(I + s·LW⁻¹Lᵀ)⁻¹LW⁻¹.
        """
        weights = self._weights(scale, ridge)[:, None]
        quotient = turned / weights
        if self.late_rows:
            inner = _product(self._inverse(scale, ridge), _product(self.late, quotient))
            quotient -= scale * _product(self.late.T, inner) / weights
        return np.asarray(quotient)

    def _weights(self, scale: float, ridge: float) -> FloatArray:
        return np.maximum(scale * self.values + ridge, np.finfo(float).tiny)

    def _inverse(self, scale: float, ridge: float) -> Array:
        """(I + s·LW⁻¹Lᵀ)⁻¹, shape (k, k)."""
        key = (scale, ridge)
        if key not in self._inverses:
            if len(self._inverses) == _INVERSES:
                self._inverses.pop(next(iter(self._inverses)))
            xp, late = array_namespace(self.late), self.late
            eye = xp.eye(self.late_rows, dtype=late.dtype, device=device(late))
            weighted = late * beside(scale / self._weights(scale, ridge), late)
            self._inverses[key] = xp.linalg.inv(eye + weighted @ late.T)
        return self._inverses[key]

    @cached_property
    def _inverses(self) -> dict[tuple[float, float], Array]:
        return {}

    def effective_dimension(self, ridge: float) -> float:
        """tr(X̃ᵀX̃(X̃ᵀX̃ + ridge)⁻¹): how many directions the data determine."""
        found = float((self.values / (self.values + ridge)).sum())
        if self.late_rows:
            spread = self.late / beside(self._weights(1.0, ridge), self.late)
            found += ridge * float((self._inverse(1.0, ridge) * (spread @ spread.T)).sum())
        return found

    def leave_one_out(self, ridge: float) -> float:
        """Squared error on every row of the model fitted without it (PRESS), summed.

        A row that was left out is a random combination of points, so this estimates the squared
        error of the model on *all* points, without a test point.
        """
        return float(self._leave_one_out(np.array([ridge]))[0])

    def _leave_one_out(self, ridges: FloatArray) -> FloatArray:
        parts = [((e / unused) ** 2).sum((0, 2)) for e, unused in self._errors(ridges)]
        return np.asarray(np.sum(parts, axis=0) * self.rows / len(self.judged))

    def smallest_objective(self, ridge: float) -> float:
        """Estimate the ridge objective of all points at its minimum, ½‖Xβ − Y‖² + ½·ridge·‖β‖².

        The fit makes the parity's own errors too small; each row is corrected by its leverage. The
        result is needed in every round for the same ridge, so it is cached.
        """
        if ridge not in self._objectives:
            penalty = ridge * float((self.solve(ridge) ** 2).sum())
            parts = [(e**2 / unused).sum() for e, unused in self._errors(np.array([ridge]))]
            errors = float(np.sum(parts)) * self.rows / len(self.judged)
            self._objectives[ridge] = (errors + penalty) / 2
        return self._objectives[ridge]

    @cached_property
    def _objectives(self) -> dict[float, float]:
        return {}

    def _errors(self, ridges: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield errors of the fits (n, r, c), and 1 − leverage of the rows (n, r, 1), in parts."""
        moment = self.turned(self.gathered(self.targets))
        models = np.hstack([self._divided(moment, 1.0, ridge) for ridge in ridges])
        for start in range(0, len(self.judged), _ROWS):
            rotated = self.rotated[start : start + _ROWS]
            targets = self.targets[self.judged[start : start + _ROWS]]
            fitted = _product(rotated, models).reshape(len(targets), len(ridges), -1)
            unused = np.maximum(1 - self._leverages(rotated, ridges), 1e-12)
            yield targets[:, None, :] - fitted, unused[:, :, None]

    def _leverages(self, rotated: Array, ridges: FloatArray) -> FloatArray:
        """Return x(X̃ᵀX̃ + ridge)⁻¹xᵀ of rows x·V, shape (n, r)."""
        shrunk = np.stack([1 / self._weights(1.0, ridge) for ridge in ridges], axis=1)
        found = _product(rotated**2, shrunk)
        for k, ridge in enumerate(ridges if self.late_rows else ()):
            shared = (rotated * beside(shrunk[:, k], rotated)) @ self.late.T
            found[:, k] -= to_host(((shared @ self._inverse(1.0, ridge)) * shared).sum(1))
        return found

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
    return to_host(matrix @ beside(columns, matrix))
