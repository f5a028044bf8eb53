"""Codes: random matrices G with E[GᵀG] = I that mix a client's points into parity rows.

| name | a column of G: one point | operations a number | points behind a row |
| --- | --- | --- | --- |
| `gaussian` | u draws from N(0, 1/u), the paper's | u | all |
| `sign` | u times ±1/√u | u | all |
| `sparse` | s times ±1/√s, at random rows | s | about s·k/u |
| `dealt` | s times ±1/√s, dealt in turn from shuffled points | s | at least s·⌊k/u⌋, distinct |

A dealt code is the sum of s deals: shuffle the points, flip signs, deal them to the rows like
cards, and add up; each deal begins at another row. It needs no multiplication and gives every row
as many points as every other.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor, log, sqrt

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, is_numpy_array

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like
from codedfedl.errors import InputError
from codedfedl.io.names import count_of, nearest

LEAST_MIXING = 10
"""Points behind every parity row, unless fewer are asked for."""

_log = logging.getLogger(__name__)

Entries = npt.NDArray[np.float32]
Draw = Callable[[np.random.Generator, int, int], Entries]

POINTS_AT_ONCE = 1 << 13  # Dense codes of clients with so many points go into one product.
ENTRIES_AT_ONCE = 1 << 20  # So many entries of a dense code are in memory at one time.
COLUMNS_AT_ONCE = 1 << 12  # At least so many columns of a sparse code are drawn together.
MIN_PRODUCT_COLUMNS = 1 << 11  # Columns of a sparse code that make a product fast.


@dataclass(frozen=True)
class Code:
    """A way to mix points.

    Parameters
    ----------
    name
        One of `CODES`.
    nonzeros
        s, the rows that a point goes into; only for ``sparse`` and ``dealt``.
    """

    name: str = "gaussian"
    nonzeros: int = 1

    def __post_init__(self) -> None:
        if self.name not in CODES:
            raise InputError(f"code {self.name!r} is unknown: {nearest(self.name, CODES)}")
        if not isinstance(self.nonzeros, int) or self.nonzeros < 1:
            raise InputError(f"nonzeros is {self.nonzeros}: must be a whole number above 0")

    def operations(self, rows: int) -> int:
        """Return the operations that a point costs for each of its numbers."""
        return min(self.nonzeros, rows) if self.name in ("sparse", "dealt") else rows

    def points_per_row(self, points: int, rows: int) -> int:
        """Return how many distinct points a row mixes: at least, or for `sparse` on average."""
        if self.name == "dealt":
            return points // rows * self.operations(rows)
        return points * self.operations(rows) // rows

    def fewest_points_per_row(self, points: int, rows: int, evenness: float = 1.0) -> int:
        """Return how many distinct points every row mixes that is not 0, counted by their weights.

        Places of a sparse code are random, and so is which of the weights a row of a dealt code
        gets: by Chernoff's bound none of the rows has fewer points, but for a chance of 1e-9.

        Parameters
        ----------
        evenness
            Of the weights (`evenness`).
        """
        mean = self.points_per_row(points, rows) * evenness
        all_alike = self.name == "dealt" and evenness > 1 - 1e-9
        if self.is_dense or self.operations(rows) == rows or all_alike:
            return floor(mean + 1e-6)
        return max(1, floor(mean - sqrt(2 * mean * log(1e9 * rows))))

    def mix(
        self, parts: Sequence[Array], weights: FloatArray, rows: int, rng: np.random.Generator
    ) -> list[Array]:
        """G·W·X for each matrix X, all of k rows, with one and the same code.

        Parameters
        ----------
        parts
            Such as a client's features and its targets.
        weights : array of shape (k,)
            The diagonal of W.
        rng
            The client's private stream; whoever has it can undo the mixing.
        """
        points = parts[0].shape[0]
        if not rows >= 1:
            raise InputError(f"parity rows are {rows}: must be at least 1")
        if any(part.shape[0] != points for part in (*parts, weights)):
            raise InputError(f"a code mixes {points} points: features, targets and weights differ")
        if self.name == "dealt" and rows > points:
            raise InputError(f"a dealt code of {points} points has no {rows} rows")
        return self.mix_all(parts, [weights], rows, [rng])

    def mix_all(
        self,
        parts: Sequence[Array],
        weights: Sequence[FloatArray],
        rows: int,
        rngs: Sequence[np.random.Generator],
    ) -> list[Array]:
        """Σ_j G_j·W_j·X_j of clients whose points lie one after the other: the sum of their `mix`.

        Codes of several clients go into one product, which is faster than one for each.

        Parameters
        ----------
        weights, rngs
            Of each client.
        """
        if self.is_dense:
            return _added(_dense(_DENSE[self.name], parts, weights, rows, rngs))
        clients = zip(weights, rngs, strict=True)
        if self.name == "sparse":
            drawn = (self._columns(parts[0], held, rows, rng) for held, rng in clients)
            return _added(_products(parts, _wide(chain.from_iterable(drawn))))
        s, ends = self.operations(rows), np.cumsum([len(held) for held in weights]).tolist()
        each = (
            _deal([part[end - len(held) : end] for part in parts], held, rows, rng, s)
            for (held, rng), end in zip(clients, ends, strict=True)
            if len(held)
        )
        return _added(each)

    @property
    def is_dense(self) -> bool:
        """Whether every point goes into every row."""
        return self.name in _DENSE

    def named_by(self, rows: int) -> tuple[int, ...]:
        """Return what tells a client's codes apart: its rows, but for dense ones.

        A dense code with fewer rows is the beginning of one with more.
        """
        return () if self.is_dense else (rows,)

    def matrix(self, points: int, rows: int, rng: np.random.Generator) -> Array:
        """Return G itself, shape (rows, points); that of a sparse code is SciPy's sparse array."""
        if self.name == "sparse":
            return _side_by_side(list(self._columns(np.zeros(0), np.ones(points), rows, rng)))
        return self.mix((np.eye(points, dtype=np.float32),), np.ones(points), rows, rng)[0]

    def _columns(
        self, like: Array, weights: FloatArray, rows: int, rng: np.random.Generator
    ) -> Iterator[Array]:
        """Draw G·W of a sparse code, some columns at a time."""
        width = max(COLUMNS_AT_ONCE, rows)
        for start in range(0, len(weights), width):
            held = weights[start : start + width]
            yield _scattered(like, held, rows, rng, self.operations(rows))


def warn_of_thin_rows(scheme: str, points: int) -> None:
    """Say that a row of fewer than ten points is close to raw data."""
    if points < LEAST_MIXING:
        few = "less than one point" if points == 0 else count_of(points, "point")
        _log.warning("%s: a parity row mixes %s and is close to raw data", scheme, few)


def _gaussian(rng: np.random.Generator, rows: int, columns: int) -> Entries:
    return rng.standard_normal((rows, columns), dtype=np.float32)


def _sign(rng: np.random.Generator, rows: int, columns: int) -> Entries:
    # Whole words are drawn: bits and bytes that a call does not need would be lost, and then the
    # code would depend on how many rows are drawn at a time.
    heads = rng.random((rows, columns), dtype=np.float32) < 0.5
    return np.where(heads, np.float32(1), np.float32(-1))


_DENSE: dict[str, Draw] = {"gaussian": _gaussian, "sign": _sign}
CODES = (*_DENSE, "sparse", "dealt")
"""The names of all codes."""

GAUSSIAN = Code()
"""The paper's own."""


def _dense(
    draw: Draw,
    parts: Sequence[Array],
    weights: Sequence[FloatArray],
    rows: int,
    rngs: Sequence[np.random.Generator],
) -> Iterator[list[Array]]:
    """Multiply dense codes, drawn row by row, with the points of some clients after others."""
    begin = first = 0
    while first < len(weights):
        last, points = first + 1, len(weights[first])
        while last < len(weights) and points + len(weights[last]) <= POINTS_AT_ONCE:
            points += len(weights[last])
            last += 1
        clients = list(zip(weights[first:last], rngs[first:last], strict=True))
        mixed = [part[begin : begin + points] for part in parts]
        yield _dense_product(draw, mixed, clients, rows)
        begin, first = begin + points, last


def _dense_product(
    draw: Draw,
    parts: Sequence[Array],
    clients: Sequence[tuple[FloatArray, np.random.Generator]],
    rows: int,
) -> list[Array]:
    """Multiply the codes of some clients, some rows at a time, with those points that count."""
    xp, where = array_namespace(parts[0]), device(parts[0])
    totals = [xp.zeros((rows, part.shape[1]), dtype=part.dtype, device=where) for part in parts]
    scale = np.concatenate([weights for weights, _ in clients]) / np.sqrt(rows)
    counted = np.flatnonzero(scale)
    if not len(counted):
        return totals
    if len(counted) < len(scale):
        parts = [xp.take(part, xp.asarray(counted, device=where), axis=0) for part in parts]
    step = max(1, ENTRIES_AT_ONCE // len(scale))
    for start in range(0, rows, step):
        height = min(step, rows - start)
        drawn = [draw(rng, height, len(held)) for held, rng in clients]
        entries = asarray_like((np.hstack(drawn) * scale.astype(np.float32))[:, counted], parts[0])
        for total, part in zip(totals, parts, strict=True):
            total[start : start + height] += entries @ part
    return totals


def _scattered(
    like: Array, weights: FloatArray, rows: int, rng: np.random.Generator, nonzeros: int
) -> Array:
    """Draw the places and signs of the entries.

    A GPU multiplies with the dense matrix, which has the same entries.
    """
    places = _places(rng, rows, len(weights), nonzeros)
    signs = (1 - 2 * rng.integers(0, 2, places.shape, dtype=np.int8)) / np.sqrt(nonzeros)
    values = (signs * weights[:, None]).astype(np.float32)
    if is_numpy_array(like):
        from scipy.sparse import csc_array

        ends = np.arange(0, values.size + 1, nonzeros)
        return csc_array((values.ravel(), places.ravel(), ends), (rows, len(places)))
    entries = np.zeros((rows, len(places)), dtype=np.float32)
    np.put_along_axis(entries, places.T, values.T, axis=0)
    return asarray_like(entries, like)


def _products(parts: Sequence[Array], columns: Iterable[Array]) -> Iterator[list[Array]]:
    """Multiply columns of a code with the points that they mix."""
    begin = 0
    for block in columns:
        end = begin + block.shape[1]
        yield [block @ matrix[begin:end] for matrix in parts]
        begin = end


def _added(mixed: Iterable[list[Array]]) -> list[Array]:
    """Add up, in place: a copy of all rows costs as much as a product."""
    mixed = iter(mixed)
    totals = next(mixed)
    for more in mixed:
        for k, array in enumerate(more):
            totals[k] += array
    return totals


def _wide(columns: Iterable[Array]) -> Iterator[Array]:
    """Put columns side by side until there are enough for a fast product."""
    blocks: list[Array] = []
    for block in columns:
        blocks.append(block)
        if sum(waiting.shape[1] for waiting in blocks) >= MIN_PRODUCT_COLUMNS:
            yield _side_by_side(blocks)
            blocks = []
    if blocks:
        yield _side_by_side(blocks)


def _side_by_side(blocks: Sequence[Array]) -> Array:
    if len(blocks) == 1:
        return blocks[0]
    if hasattr(blocks[0], "tocsc"):
        from scipy.sparse import hstack

        return hstack(blocks, format="csc")
    return array_namespace(blocks[0]).concat(list(blocks), axis=1)


def _places(rng: np.random.Generator, rows: int, points: int, nonzeros: int) -> IntArray:
    """Draw distinct rows for every point, shape (points, nonzeros)."""
    if nonzeros**2 > rows:  # one row would often be drawn twice
        return rng.random((points, rows)).argpartition(nonzeros - 1, axis=1)[:, :nonzeros]
    places = rng.integers(0, rows, (points, nonzeros))
    again = np.arange(points)
    while len(again):
        drawn = np.sort(places[again], axis=1)
        again = again[(drawn[:, 1:] == drawn[:, :-1]).any(axis=1)]
        places[again] = rng.integers(0, rows, (len(again), nonzeros))
    return places


def _deal(
    parts: Sequence[Array],
    weights: FloatArray,
    rows: int,
    rng: np.random.Generator,
    nonzeros: int,
) -> list[Array]:
    """Shuffle, sign, deal to the rows in turn, and add up; then again, from another row on.

    No point comes twice into a row, so that nothing cancels.
    """
    xp, where = array_namespace(parts[0]), device(parts[0])
    points = parts[0].shape[0]
    order = rng.permutation(points)
    totals: list[Array] = []
    for first in rng.permutation(rows)[:nonzeros].tolist():
        signs = (1 - 2 * rng.integers(0, 2, points)) * weights[order] / np.sqrt(nonzeros)
        mixed = [xp.zeros((rows, m.shape[1]), dtype=m.dtype, device=where) for m in parts]
        for start in range(0, points, rows):  # one card for every row: points may be on a disk
            hand = order[start : start + rows]
            cards = xp.asarray(hand, device=where)
            column = xp.asarray(signs[start : start + rows].astype(np.float32), device=where)
            for total, matrix in zip(mixed, parts, strict=True):
                total[: len(hand)] += xp.take(matrix, cards, axis=0) * column[:, None]
        mixed = [xp.roll(total, first, axis=0) for total in mixed]
        totals = [t + m for t, m in zip(totals, mixed, strict=True)] if totals else mixed
    return totals
