"""Features that are computed when they are needed, for data whose features do not fit in memory.

A mini-batch asks for rows and gets their features, like those of an array; nothing is kept but the
rows that were last embedded ahead. Every use costs the embedding again: schemes in which each
client works on few points, or once, pay little for it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import IntArray
from codedfedl.io.files import memory
from codedfedl.learning.features import FeatureMap

__all__ = ["POINTS_AT_ONCE", "Streamed", "ahead", "too_large"]

POINTS_AT_ONCE = 8192
_SHARE = 0.5  # of the machine's memory: more than that is not for features


class Streamed:
    """The features of some points, one after the other, of which few exist at one time.

    Parameters
    ----------
    inputs : array of shape (n, d)
        The raw points of all clients, or anything that returns arrays for rows.
    points : array of shape (m,)
        Which of them, in the order of the mini-batch.
    """

    def __init__(self, features: FeatureMap, inputs: npt.NDArray[Any], points: IntArray) -> None:
        self._map, self._inputs, self._points = features, inputs, points
        self.shape = (len(points), features.size(inputs.shape[1]))
        self._place = np.zeros(0, dtype=np.int64)  # of a row among those embedded ahead, or -1
        self._kept: npt.NDArray[Any] | None = None
        self._rows = self._place  # that are embedded ahead

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | IntArray) -> npt.NDArray[Any]:
        """Return the features of some rows."""
        if self._kept is not None and isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            first = int(self._place[start]) if step == 1 and start < stop else -1
            if first >= 0 and self._place[stop - 1] == first + stop - 1 - start:
                return self._kept[first : first + stop - start]
        return np.asarray(self._map.transform(self._inputs[self._points[rows]]))

    def embed(self, rows: IntArray) -> None:
        """Embed some rows, in ascending order, ahead of their use; forget the last ones."""
        self.forget()
        if not len(self._place):
            self._place = np.full(len(self), -1, dtype=np.int64)
        self._kept, self._rows = self[rows], rows
        self._place[rows] = np.arange(len(rows))

    def forget(self) -> None:
        """Forget what was embedded ahead."""
        self._kept = None
        self._place[self._rows] = -1
        self._rows = self._rows[:0]


def ahead(
    features: Sequence[Any], starts: Sequence[IntArray], counts: Sequence[IntArray]
) -> Iterator[slice]:
    """Embed ranges of rows in groups; yield each group while it is embedded.

    Few products with many rows take far less time than many with few.

    Parameters
    ----------
    features
        Of each mini-batch; arrays are there already, and are one group.
    starts, counts
        For each mini-batch, where the ranges begin, and how many rows they have, shape (k,).
    """
    ranges = len(counts[0]) if counts else 0
    if not any(isinstance(one, Streamed) for one in features):
        yield slice(0, ranges)
        return
    for group in _groups(np.sum(counts, axis=0)):
        for one, start, count in zip(features, starts, counts, strict=True):
            if isinstance(one, Streamed):
                one.embed(_rows(start[group], count[group]))
        yield group
    for one in features:
        one.forget()


def _groups(points: IntArray) -> Iterator[slice]:
    """Cut ranges into groups of about so many points; no range is cut."""
    ends = np.cumsum(points)
    first = 0
    while first < len(points):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + POINTS_AT_ONCE, side="right")))
        yield slice(first, last)
        first = last


def _rows(starts: IntArray, counts: IntArray) -> IntArray:
    """Return start, start + 1, … of every range, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - counts), counts))


def too_large(points: int, features: int) -> bool:
    """Whether the features of so many points take too much of this machine's memory."""
    return 4.0 * points * features > _SHARE * memory()
