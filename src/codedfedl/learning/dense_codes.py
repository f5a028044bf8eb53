"""Dense codes of many clients, for several plans at once.

A code is drawn row by row, so that one with fewer rows is the beginning of one with more. Plans
that differ in their rows and weights then share the draws; and points whose weights differ between
plans by one factor, such as those that no plan processes, share the products.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from codedfedl.arrays import Array, FloatArray, IntArray, asarray_like

__all__ = ["Draw", "Entries", "Use", "mixed"]

Entries = npt.NDArray[np.float32]
Draw = Callable[[np.random.Generator, int, int], Entries]
"""Draws so many rows and columns of mean 0 and variance 1, row after row."""

_POINTS = 1 << 13  # whose columns are drawn together, but for a client that has more
_ENTRIES = 1 << 20  # that exist at one time
_NOWHERE = -2  # not beside the first place, 0
_WIDE = 128  # points that a product needs for sharing it to pay off


@dataclass(frozen=True, eq=False)
class Use:
    """What a plan does with the codes: their rows, u, and the weights of each client's points."""

    rows: int
    weights: Sequence[FloatArray]

    def of(self, clients: slice) -> "Use":
        """Return the same for some of the clients."""
        return Use(self.rows, self.weights[clients])


def mixed(
    draw: Draw,
    parts: Sequence[Array],
    uses: Sequence[Use],
    rngs: Sequence[np.random.Generator],
) -> list[list[Array]]:
    """Σ_j G_j·W_j·X_j of every matrix for every use, with G_j = entries/√u.

    Parameters
    ----------
    parts
        Matrices with the points of all clients, one client after the other.
    rngs
        Of each client.
    """
    xp, where = array_namespace(parts[0]), device(parts[0])
    totals = [
        [xp.zeros((use.rows, m.shape[1]), dtype=m.dtype, device=where) for m in parts]
        for use in uses
    ]
    held = np.array([len(own) for own in uses[0].weights])
    ends = np.cumsum(held)
    for clients in _together(held):
        begin = int(ends[clients.start] - held[clients.start])
        own = [part[begin : int(ends[clients.stop - 1])] for part in parts]
        some = [use.of(clients) for use in uses]
        _add(totals, draw, own, some, rngs[clients])
    return totals


def _together(held: IntArray) -> Iterator[slice]:
    """Yield clients that are encoded together."""
    start, points = 0, 0
    for j, count in enumerate(held.tolist()):
        if j > start and points + count > _POINTS:
            yield slice(start, j)
            start, points = j, 0
        points += count
    yield slice(start, len(held))


def _add(
    totals: Sequence[Sequence[Array]],
    draw: Draw,
    parts: Sequence[Array],
    uses: Sequence[Use],
    rngs: Sequence[np.random.Generator],
) -> None:
    """Add the parity of some clients."""
    weights = np.stack([np.concatenate(use.weights) for use in uses])
    scale = np.abs(weights).max(axis=0)
    counted = np.flatnonzero(scale)
    if not len(counted):
        return
    factors, group = np.unique(weights[:, counted] / scale[counted], axis=1, return_inverse=True)
    if factors.shape[1] * _WIDE > len(counted) and len(uses) > 1:
        for total, use in zip(totals, uses, strict=True):  # too few share a factor: one by one
            _add([total], draw, parts, [use], deepcopy(rngs))
        return
    order = counted[np.argsort(group, kind="stable")]
    rows = max(use.rows for use in uses)
    columns = _Columns(draw, rows, uses[0].weights, scale, order, rngs)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group))])
    parts = [_rows(part, order) for part in parts]
    products = [_empty(part, (len(bounds) - 1, columns.at_once, part.shape[1])) for part in parts]
    for first, block in columns.blocks():
        using = [k for k, use in enumerate(uses) if use.rows > first]
        shares = np.stack([factors[k] / np.sqrt(uses[k].rows) for k in using])
        there = np.flatnonzero(shares.any(axis=0))
        if not len(there):  # the plans with so many rows leave these clients out
            break
        for p, part in enumerate(parts):
            entries, some = asarray_like(block, part), products[p][: len(there), : len(block)]
            for place, g in enumerate(there.tolist()):
                own = slice(*bounds[g : g + 2].tolist())
                some[place, ...] = entries[:, own] @ part[own]
            for k, own_sum in zip(using, _combined(shares[:, there], some), strict=True):
                total = totals[k][p][first : first + len(block)]
                total += own_sum[: total.shape[0]]


def _combined(shares: FloatArray, products: Array) -> Array:
    """Return Σ_g share_g·product_g for each row of shares."""
    xp = array_namespace(products)
    factors = xp.astype(asarray_like(shares, products), products.dtype)
    flat = xp.reshape(products, (products.shape[0], -1))
    return xp.reshape(factors @ flat, (-1, *products.shape[1:]))


def _empty(like: Array, shape: tuple[int, ...]) -> Array:
    """Return memory for the products: to get it anew for every block would cost as much as they."""
    return array_namespace(like).empty(shape, dtype=like.dtype, device=device(like))


def _rows(part: Array, order: IntArray) -> Array:
    """Return some rows of a matrix, without a copy where these are all."""
    if len(order) == part.shape[0] and (np.diff(order) == 1).all():
        return part
    xp = array_namespace(part)
    return xp.take(part, xp.asarray(order, device=device(part)), axis=0)


@dataclass(frozen=True, eq=False)
class _Client:
    """A client whose points count: their scales, and to which columns they go."""

    rng: np.random.Generator
    scale: Entries
    runs: Sequence[tuple[slice, slice]]


class _Columns:
    """The codes of some clients side by side, times scales, in the order of the products."""

    def __init__(
        self,
        draw: Draw,
        rows: int,
        weights: Sequence[FloatArray],
        scale: FloatArray,
        order: IntArray,
        rngs: Sequence[np.random.Generator],
    ) -> None:
        self.draw, self.width = draw, len(order)
        self.rows, self.at_once = rows, min(rows, max(1, _ENTRIES // self.width))
        place = np.full(len(scale), _NOWHERE)
        place[order] = np.arange(len(order))
        cuts = np.cumsum([len(own) for own in weights])[:-1]
        scales, places = np.split(scale.astype(np.float32), cuts), np.split(place, cuts)
        self.clients = [
            _Client(rng, own, list(_runs(to)))
            for rng, own, to in zip(rngs, scales, places, strict=True)
            if (to >= 0).any()
        ]

    def blocks(self) -> Iterator[tuple[int, Entries]]:
        """Yield rows after rows: the number of the first, and the entries, in the same memory."""
        block = np.empty((self.at_once, self.width), dtype=np.float32)
        with ThreadPoolExecutor(2) as pool:
            for first in range(0, self.rows, self.at_once):
                some = block[: self.rows - first]
                list(pool.map(partial(self._fill, some), self.clients))
                yield first, some

    def _fill(self, block: Entries, client: "_Client") -> None:
        """Draw the next rows of a client, and put its columns into their places."""
        entries = self.draw(client.rng, len(block), len(client.scale))
        entries *= client.scale
        for source, target in client.runs:
            block[:, target] = entries[:, source]


def _runs(place: IntArray) -> Iterator[tuple[slice, slice]]:
    """Yield points that stay neighbours: where they come from, and where they go."""
    cuts = np.flatnonzero(np.diff(place) != 1) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(place)]
    for start, end in zip(starts, ends, strict=True):
        first = int(place[start])
        if first >= 0:
            yield slice(start, end), slice(first, first + end - start)
