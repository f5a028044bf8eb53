"""Scales of the inputs: one that clients agree on by rounded means, or one from public bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError

__all__ = [
    "UNSCALED",
    "Bounds",
    "Moments",
    "Scaling",
    "Sides",
    "agreed_scaling",
    "bounds_of",
    "moments",
]

STEPS_PER_DOUBLING, STEPS_PER_SPREAD = 4, 8
"""A client's spreads are rounded to so many steps per factor of 2, its means to so many steps per
spread: the mean of n points moves by a step only where points change by n/8 spreads together."""

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Moments:
    """Means and spreads over the points of one client, rounded so that no point shows in them.

    Attributes
    ----------
    means, spreads : arrays of shape (d,)
        Of every input column. A spread is a power of the fourth root of 2, and 0 where all values
        are the same; a mean is a multiple of an eighth of it.
    labels : array of shape (c,)
        Means of the numbers to predict, likewise; of shape (0,) for classes.
    """

    means: FloatArray
    spreads: FloatArray
    labels: FloatArray


def moments(shard: Shard) -> Moments:
    """Return a client's rounded means and spreads, from some rows at a time."""
    labels = np.zeros(0)
    if not shard.is_classification:
        labels, _ = _rounded(np.asarray(shard.labels).reshape(len(shard.labels), -1))
    return Moments(*_rounded(shard.inputs), labels)


def _rounded(columns: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of every column, rounded.

    Two passes: sums of squares about 0 would lose the digits of columns far from it.
    """
    means, squares = np.zeros((2, columns.shape[1]))
    for rows in _blocks(columns):
        means += rows.sum(0) / len(columns)
    for rows in _blocks(columns):
        squares += ((rows - means) ** 2).sum(0) / len(columns)
    varies = squares > 0
    steps = np.rint(STEPS_PER_DOUBLING * np.log2(np.sqrt(np.where(varies, squares, 1.0))))
    spreads = np.where(varies, 2.0 ** (steps / STEPS_PER_DOUBLING), 0.0)
    grid = np.where(varies, spreads / STEPS_PER_SPREAD, 1.0)
    return np.where(varies, np.rint(means / grid) * grid, means), spreads


def _blocks(columns: npt.NDArray[Any]) -> Iterator[FloatArray]:
    for start in range(0, len(columns), _ROWS_AT_ONCE):
        yield np.asarray(columns[start : start + _ROWS_AT_ONCE], np.float64)


def agreed_scaling(clients: Sequence[Moments], points: Sequence[float]) -> "Scaling":
    """Return the common scale of clients with so many points each; spreads of 0 become 1."""
    shares = np.asarray(points, np.float64) / np.sum(points)
    means, labels = (
        np.stack([getattr(client, name) for client in clients]) for name in ("means", "labels")
    )
    low = means[0] + shares @ (means - means[0])  # exact where all are the same
    offset = labels[0] + shares @ (labels - labels[0])
    variance = sum(
        share * (client.spreads**2 + (client.means - low) ** 2)
        for share, client in zip(shares, clients, strict=True)
    )
    span = np.where(variance > 0, np.sqrt(variance), 1.0)
    return Scaling(low.tolist(), span.tolist(), offset.tolist())


@dataclass(frozen=True)
class Scaling:
    """How every client shifts and scales its data; plain lists, to be sent as JSON.

    Attributes
    ----------
    low, span
        Inputs become (value − low) / span.
    offset
        Subtracted from the numbers to predict; empty for classes.
    """

    low: list[float] = field(default_factory=list)
    span: list[float] = field(default_factory=list)
    offset: list[float] = field(default_factory=list)

    def inputs(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return scaled inputs; as they are where nothing was agreed on."""
        if not self.low:
            return values
        return (np.asarray(values, np.float64) - self.low) / self.span

    def targets(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return centred targets; as they are for classes."""
        return values - np.asarray(self.offset, np.float32) if self.offset else values


UNSCALED = Scaling()
"""No scaling."""

Sides = float | tuple[float, ...]
"""A number for all input columns, or one for each."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of the input values that are known without looking at the data.

    Values beyond them are not refused: they are scaled like all others.
    """

    low: Sides
    high: Sides

    def __post_init__(self) -> None:
        low, high = (np.atleast_1d(side).astype(np.float64) for side in (self.low, self.high))
        if len({len(low), len(high)} - {1}) > 1 or not (low < high).all():
            raise InputError(
                f"data.low is {self.low} and data.high is {self.high}: give a number each, or one "
                "for each input column, with low below high"
            )
        if not np.isfinite([*low, *high]).all():
            raise InputError(f"data.low is {self.low} and data.high is {self.high}: must be finite")

    def scale(self, columns: int) -> tuple[FloatArray, FloatArray]:
        """Return the lowest value of each column and its span."""
        sides = [np.asarray(side, dtype=np.float64) for side in (self.low, self.high)]
        for name, side in zip(("low", "high"), sides, strict=True):
            if side.ndim and len(side) != columns:
                raise InputError(
                    f"data.{name} has {len(side)} values where there are {columns} input columns: "
                    "give one for each, or a single number"
                )
        low, high = (np.broadcast_to(side, columns) for side in sides)
        return low.copy(), high - low


def bounds_of(low: Sides | None, high: Sides | None) -> Bounds | None:
    """Return the bounds that are given; None where none are."""
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise InputError(f"data.low is {low} and data.high is {high}: give both")
    return Bounds(low, high)
