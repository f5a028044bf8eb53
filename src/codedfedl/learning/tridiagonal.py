"""A symmetric matrix H as Q·T·Qᵀ, with a block tridiagonal T and an orthogonal Q.

Like the eigenvalues it serves (s·H + ρ)⁻¹ for any s and ρ: s·T + ρ is factorised in time that is
linear in its size. But it takes a third of the operations, nearly all of them in large products.

Q is a product of reflections, each of which takes the columns below a block to a single block. Some
of them together are I − W·Uᵀ; Q itself is never formed.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array
from scipy.linalg.lapack import dtrtri
from scipy.sparse.linalg import LinearOperator, eigsh

from codedfedl.arrays import Array, FloatArray, asarray_like, to_host
from codedfedl.learning.panels import Crew, times

__all__ = ["Factor", "Tridiagonal"]

_WIDTH = 32  # of a block
_TOGETHER = 4  # reflections, before they are applied to the rest of the matrix
_ROWS = 8 * _WIDTH  # of a strip

T = TypeVar("T")


class _Reflections(NamedTuple):
    """I − W·Uᵀ in the coordinates from `first` on, with arrays of shape (q − first, k)."""

    first: int
    u: Array
    w: Array


@dataclass(frozen=True, eq=False)
class Tridiagonal:
    """H = Q·T·Qᵀ, with T on the host, and Q where H was.

    Attributes
    ----------
    diagonal, below
        The blocks of T on its diagonal, and those below it, of which there is one less.
    """

    diagonal: Sequence[FloatArray]
    below: Sequence[FloatArray]
    reflections: Sequence[_Reflections]

    @classmethod
    def of(cls, matrix: Array) -> "Tridiagonal":
        """Reduce a symmetric matrix in float64, whose memory is overwritten."""
        crew = Crew()
        with crew.alone():
            return cls._of(matrix, crew)

    @classmethod
    def _of(cls, matrix: Array, crew: Crew) -> "Tridiagonal":
        diagonal: list[FloatArray] = []
        below: list[FloatArray] = []
        reflections, first = [], 0
        while matrix.shape[0] > 2 * _WIDTH:
            pending = _Pending(matrix, first, crew)
            for block, under in pending.reflected():
                diagonal.append(block)
                below.append(under)
            reflections.append(_Reflections(first + _WIDTH, pending.u, pending.w))
            first, matrix = first + pending.u.shape[1], pending.rest()
        last = to_host(matrix).copy()  # not a view, which would keep the whole matrix
        diagonal.append(last[:_WIDTH, :_WIDTH])
        if len(last) > _WIDTH:
            below.append(last[_WIDTH:, :_WIDTH])
            diagonal.append(last[_WIDTH:, _WIDTH:])
        return cls(diagonal, below, reflections)

    @cached_property
    def places(self) -> list[slice]:
        """Where the blocks are."""
        ends = np.cumsum([len(block) for block in self.diagonal]).tolist()
        return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    @property
    def size(self) -> int:
        """Rows of H, q."""
        return int(self.places[-1].stop)

    def turned(self, columns: Array) -> Array:
        """Return Qᵀ·columns."""
        found = _copy(columns)
        for first, u, w in self.reflections:
            found[first:, :] -= u @ (w.T @ found[first:, :])
        return found

    def turned_back(self, turned: Array) -> Array:
        """Return Q·turned."""
        found = _copy(turned)
        for first, u, w in reversed(self.reflections):
            found[first:, :] -= w @ (u.T @ found[first:, :])
        return found

    def times(self, turned: FloatArray) -> FloatArray:
        """Return T·turned."""
        found = np.empty_like(turned)
        for place, block in zip(self.places, self.diagonal, strict=True):
            found[place] = block @ turned[place]
        for k, block in enumerate(self.below):
            above, here = self.places[k], self.places[k + 1]
            found[here] += block @ turned[above]
            found[above] += block.T @ turned[here]
        return found

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue of H, or 0 if none is larger."""
        if self.size <= 2 * _WIDTH or not any(block.any() for block in self.diagonal):
            return max(float(np.linalg.eigvalsh(self.times(np.eye(self.size)))[-1]), 0.0)
        operator = LinearOperator(
            (self.size, self.size), matvec=lambda v: self.times(v.reshape(-1, 1)), dtype=np.float64
        )
        start = np.ones(self.size)
        (found,) = eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)
        return max(float(found), 0.0)

    def factor(self, scale: float, ridge: float) -> "Factor":
        """Return L of L·Lᵀ = scale·T + ridge; raise `LinAlgError` if that is singular."""
        least = self.size * np.finfo(float).eps * (scale * self.largest + ridge)
        inverses: list[FloatArray] = []
        below: list[FloatArray] = []
        for k, block in enumerate(self.diagonal):
            rest = scale * block
            rest.flat[:: len(block) + 1] += ridge
            if k:
                below.append((scale * self.below[k - 1]) @ inverses[-1].T)
                rest -= below[-1] @ below[-1].T
            lower = np.linalg.cholesky(rest)
            if not lower.diagonal().min() ** 2 > least:
                raise np.linalg.LinAlgError("singular")
            inverses.append(dtrtri(lower, lower=1)[0])
        return Factor(self.places, inverses, below)


@dataclass(frozen=True, eq=False)
class Factor:
    """The lower triangular L of L·Lᵀ = scale·T + ridge.

    Attributes
    ----------
    inverses, below
        Inverses of the blocks on its diagonal, and the blocks below it.
    """

    places: Sequence[slice]
    inverses: Sequence[FloatArray]
    below: Sequence[FloatArray]

    def halves(self, columns: Array) -> Iterator[Array]:
        """Yield the blocks of L⁻¹·columns."""
        half = None
        for k, place in enumerate(self.places):
            rest = columns[place, :]
            if half is not None:
                rest = rest - asarray_like(self.below[k - 1], columns) @ half
            half = asarray_like(self.inverses[k], columns) @ rest
            yield half

    def half(self, columns: Array) -> Array:
        """Return L⁻¹·columns."""
        return array_namespace(columns).concat(list(self.halves(columns)), axis=0)

    def solve(self, columns: Array) -> Array:
        """Return (scale·T + ridge)⁻¹·columns."""
        found: list[Array] = []
        for k, half in reversed(list(enumerate(self.halves(columns)))):
            rest = half - asarray_like(self.below[k], columns).T @ found[-1] if found else half
            found.append(asarray_like(self.inverses[k], columns).T @ rest)
        return array_namespace(columns).concat(found[::-1], axis=0)

    def inverse_trace(self) -> float:
        """Return tr((scale·T + ridge)⁻¹)."""
        total, under = 0.0, None
        for k, inverse in reversed(list(enumerate(self.inverses))):
            middle = np.eye(len(inverse))
            if under is not None:
                middle += self.below[k].T @ under @ self.below[k]
            under = inverse.T @ middle @ inverse
            total += float(np.trace(under))
        return total


class _Pending:
    """Reflections of a matrix A that are not yet applied to it.

    The reflected matrix is A − U·Xᵀ − X·Uᵀ in the coordinates below the first block. A consists of
    the coordinates from `offset` on of a larger matrix. That is cut into strips of rows, and what
    is on the right of a strip's square on the diagonal is not kept up to date.
    """

    def __init__(self, matrix: Array, offset: int, crew: Crew) -> None:
        rows = matrix.shape[0] - _WIDTH
        count = min(_TOGETHER, -(-(rows - _WIDTH) // _WIDTH))
        xp = array_namespace(matrix)
        self.matrix, self.offset, self.crew = matrix, offset, crew
        self.on_host = is_numpy_array(matrix)
        self.u, self.w, self.x = (
            xp.zeros((rows, count * _WIDTH), dtype=matrix.dtype, device=device(matrix))
            for _ in range(3)
        )

    def reflected(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Reflect block after block; yield those of T on the diagonal and below it."""
        for k in range(0, self.u.shape[1], _WIDTH):
            columns = self._columns(k)
            yield to_host(columns[:_WIDTH, :]).copy(), self._reflect(k, columns[_WIDTH:, :])

    def _columns(self, k: int) -> Array:
        """Return the columns of the block at k, from its diagonal on."""
        here = slice(k, k + _WIDTH)
        columns = array_namespace(self.matrix).asarray(self.matrix[k:, here], copy=True)
        if k:
            u, x = self.u[k - _WIDTH :, :k], self.x[k - _WIDTH :, :k]
            columns -= u @ x[:_WIDTH, :].T + x @ u[:_WIDTH, :].T
        return columns

    def _reflect(self, k: int, panel: Array) -> FloatArray:
        """Add the reflection that takes a panel to its first block, and return that.

        The panel is Q₁R. With the polar decomposition O·P of Q₁'s first block and U = −E·O − Q₁,
        where E has that block's columns, I − U(I + P)⁻¹Uᵀ takes Q₁ to −E·O.
        """
        xp, here = array_namespace(panel), slice(k, k + _WIDTH)
        q1, r = xp.linalg.qr(panel)
        left, values, right = np.linalg.svd(to_host(q1[:_WIDTH, :]))
        corner = -left @ right
        middle = asarray_like((right.T / (1 + values)) @ right, panel)
        u = -q1
        u[:_WIDTH, :] += asarray_like(corner, panel)
        before, x = self.u[k:, :k], self.x[k:, :k]
        y = self._times(k + _WIDTH, u) - before @ (x.T @ u) - x @ (before.T @ u)
        y = y @ middle
        self.x[k:, here] = y - u @ (middle @ (u.T @ y)) / 2
        self.w[:, here] = -(self.w[:, :k] @ (before.T @ u)) @ middle
        self.w[k:, here] += u @ middle
        self.u[k:, here] = u
        return np.asarray(corner @ to_host(r))

    def _times(self, first: int, columns: Array) -> Array:
        """Return A·columns in the coordinates from `first` on."""

        def product(start: int, stop: int) -> Array:
            """Return some rows of it: those of A up to the diagonal, and columns for the rest."""
            found = multiply(self.matrix[start:stop, first:stop], columns[: stop - first, :])
            if stop < self.matrix.shape[0]:
                found += multiply(self.matrix[stop:, start:stop].T, columns[stop - first :, :])
            return found

        multiply = times if self.on_host else operator.matmul
        work = columns.shape[0] * columns.shape[0] * columns.shape[1]
        return array_namespace(columns).concat(self._of_strips(product, first, work), axis=0)

    def rest(self) -> Array:
        """Apply the reflections, and return the matrix below the blocks that are reduced."""
        first = self.u.shape[1]
        u, x = self.u[first - _WIDTH :, :], self.x[first - _WIDTH :, :]
        xp = array_namespace(u)
        left, right = xp.concat([u, x], axis=1), xp.concat([x, u], axis=1)

        def apply(start: int, stop: int) -> None:
            strip, own = left[start - first : stop - first, :], right[: stop - first, :]
            self.matrix[start:stop, first:stop] -= strip @ own.T

        self._of_strips(apply, first, left.shape[0] * left.shape[0] * first)
        return self.matrix[first:, first:]

    def _of_strips(self, work: Callable[[int, int], T], first: int, size: int) -> list[T]:
        """Do something with the strips of rows from `first` on: so many multiplications in all."""
        tasks = [partial(work, start, stop) for start, stop in self._strips(first)]
        return self.crew.each(tasks, size if self.on_host else 0)

    def _strips(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield the strips of rows from `first` on."""
        begin, end = (self.offset + first) // _ROWS * _ROWS - self.offset, self.matrix.shape[0]
        for start in range(begin, end, _ROWS):
            yield max(start, first), min(start + _ROWS, end)


def _copy(columns: Array) -> Array:
    """Return a copy, row after row."""
    xp = array_namespace(columns)
    found = xp.empty(columns.shape, dtype=columns.dtype, device=device(columns))
    found[...] = columns
    return found
